"""The command `paceline compress`."""

from __future__ import annotations

from pathlib import Path

import typer

from paceline.errors import UsageError
from paceline.interfaces.cli import compress_options as own
from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import saying
from paceline.interfaces.cli.output import print_json, write_text


def compress(
    run: options.RunArgument,
    within: own.Within = 0.5,
    latency: own.LatencyBound = None,
    size: own.SizeBound = None,
    target: own.For = "here",
    confidence: own.Confidence = 0.95,
    plan: own.RetrainingPlan = None,
    workers: options.Workers = None,
    epochs: own.RetrainingEpochs = None,
    seed: own.CompressionSeed = 0,
    output: own.CFileOutput = None,
    onnx: own.OnnxOutput = None,
    page: own.PageOutput = None,
    precision_only: own.PrecisionOnly = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Search for the fastest form of a trained network, by measurements, and write it as one C99 file.

    RUN is narrowed, retrained by its own job and written in float32 and in whole numbers of 8 and 4 bits; every form
    is compiled, compared with its reference and timed with one sample at a time. The one within the bounds that takes
    the least time is chosen. If there is none, the frontier is printed and the exit code is 1.
    """
    if precision_only:
        others = {"plan": plan, "workers": workers, "epochs": epochs, "output": output, "onnx": onnx, "page": page}
        unused = [f"--{name}" for name, value in others.items() if value is not None]
        unused += ["--for"] * (target != "here")
        if unused:
            raise UsageError(f"--precision-only measures the model on this machine as it is, so leave out {unused[0]}")
        _precisions(run, within, latency, size, confidence, seed, json)
        return
    from paceline.compression.page import page_of
    from paceline.interfaces.api.compress import checked_onnx
    from paceline.interfaces.api.compress import compress as run_compression
    from paceline.interfaces.cli.compression import show_compression

    options.refuse_existing(force, output=output, page=page, onnx=onnx)
    compression = run_compression(
        run, within, latency, size, target=target, confidence=confidence, plan=plan, workers=workers, epochs=epochs,
        seed=seed, say=saying(quiet),
    )  # fmt: skip
    if page is not None:
        write_text(page_of(compression), page, force)
    if output is not None and compression.chosen is not None:
        write_text(compression.chosen.file.text, output, force)
    if onnx is not None and compression.model is not None:
        onnx.write_bytes(checked_onnx(compression))
    if json:
        print_json({**compression.as_dict(), "output": output if compression.chosen else None})
    else:
        show_compression(compression, output)
    if compression.chosen is None:
        raise typer.Exit(1)


def _precisions(
    run: Path, within: float, latency: str | None, size: str | None, confidence: float, seed: int, json: bool
) -> None:
    """Measure the model in PyTorch's own precisions."""
    from paceline.interfaces.api.compress import compare_precisions
    from paceline.interfaces.cli.compression import show_precisions

    precisions = compare_precisions(run, within, latency, size, confidence=confidence, seed=seed, say=saying(json))
    if json:
        print_json(precisions.as_dict())
    else:
        show_precisions(precisions)
    if precisions.chosen is None:
        raise typer.Exit(1)
