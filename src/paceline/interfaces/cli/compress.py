"""The command `paceline compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.errors import UsageError
from paceline.interfaces.cli import options
from paceline.interfaces.cli.options import writable
from paceline.interfaces.cli.terminal import print_json, saying, write_text

# The options of `paceline compress`.

Within = Annotated[float, typer.Option(min=0.0, help="Points of accuracy that may be lost.")]
Confidence = Annotated[
    float,
    typer.Option(
        min=0.5, max=0.999, help="Confidence that the loss is within the bound; 0.5: as measured on validation data."
    ),
]
LatencyBound = Annotated[
    str | None,
    typer.Option(
        "--latency", metavar="T", help="Bound on a call with one sample: 5us; for a Cortex-M4 instructions: 110k."
    ),
]
SizeBound = Annotated[
    str | None, typer.Option("--size", metavar="S", help="Bound on the bytes of code and constants: 16KB.")
]
For = Annotated[
    str, typer.Option("--for", help="here: times on this machine; cortex-m4: instruction counts of a Cortex-M4.")
]
CFileOutput = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", callback=writable, help="Write the chosen network as a C99 file."),
]
OnnxOutput = Annotated[
    Path | None,
    typer.Option("--onnx", metavar="FILE", callback=writable, help="Also write it as ONNX, checked in ONNX Runtime."),
]
PageOutput = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE", callback=writable, help="Write all points and the frontier as a page."),
]
RetrainingPlan = Annotated[
    str | None,
    typer.Option("--plan", "-p", help="The plan by which narrowed networks are retrained.", show_default="sequential"),
]
RetrainingEpochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        min=1,
        help="Epochs of each retraining.",
        show_default="twice the job's, at least 5; with a schedule the job's",
    ),
]
CompressionSeed = Annotated[int, typer.Option("--seed", help="Seed that selects the training samples for validation.")]
PrecisionOnly = Annotated[
    bool,
    typer.Option("--precision-only", help="Measure any model in PyTorch's float32, bfloat16 and int8; write nothing."),
]


def compress(
    run: options.RunArgument,
    within: Within = 0.5,
    latency: LatencyBound = None,
    size: SizeBound = None,
    target: For = "here",
    confidence: Confidence = 0.95,
    plan: RetrainingPlan = None,
    workers: options.Workers = None,
    epochs: RetrainingEpochs = None,
    seed: CompressionSeed = 0,
    output: CFileOutput = None,
    onnx: OnnxOutput = None,
    page: PageOutput = None,
    precision_only: PrecisionOnly = False,
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
    from paceline.interfaces.cli.tables import show_compression

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
    from paceline.interfaces.cli.tables import show_precisions

    precisions = compare_precisions(run, within, latency, size, confidence=confidence, seed=seed, say=saying(json))
    if json:
        print_json(precisions.as_dict())
    else:
        show_precisions(precisions)
    if precisions.chosen is None:
        raise typer.Exit(1)
