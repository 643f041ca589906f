"""The command `paceline bench`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline.errors import UsageError, suggest
from paceline.interfaces.cli import options
from paceline.interfaces.cli.options import writable
from paceline.interfaces.cli.terminal import print_json, saying

# The arguments and options of `paceline bench`.

Name = Annotated[str, typer.Argument(metavar="NAME", help="The benchmark to run: kernels or null.")]
Parts = Annotated[
    str | None,
    typer.Option(
        help="Separated by commas; of kernels: study, layers, networks, replicas, ranks, gpu, algorithms; of null: "
        "scalar, dense, sparse.",
        show_default="all",
    ),
]
Seconds = Annotated[float, typer.Option(min=0.01, help="Seconds per measurement; a row takes several.")]
Threads = Annotated[str, typer.Option(help="kernels: numbers of threads, separated by commas.")]
Workers = Annotated[str, typer.Option(help="null: numbers of workers, separated by commas.")]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE", callback=writable, help="Write the roofline of part layers to this SVG file."),
]


NAMES = ("kernels", "null")


def bench(
    name: Name = "kernels",
    parts: Parts = None,
    seconds: Seconds = 1.0,
    threads: Threads = "1,2,4,8",
    workers: Workers = "1,2,4,8",
    picture: Picture = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Measure this machine and compare it with published figures.

    The parts of `kernels`: study, the small CNN of a published study, as the study ran it and as generated code;
    layers, the same CNN step by step; networks, small networks against PyTorch in its best mode; replicas, many models
    at once; ranks, the CNN trained by 1, 2 and 4 MPI ranks (started here with `mpiexec`) and by threads within ranks;
    gpu, the networks on a GPU if there is one; algorithms, the ways to convolve, the tuner's choice and their errors.

    `null` measures training steps without a model: workers pull parameters, touch them and push as much back, to a
    server with and without waiting for each other, and by an all-reduce. Its parts: scalar, one number; dense, 1 MB and
    100 MB; sparse, 32 random rows of a table of 16 MB and of 256 MB.
    """
    if name not in NAMES:
        raise UsageError(f"there is no bench {name!r}; {suggest(name, NAMES)}")
    if not math.isfinite(seconds):
        raise UsageError(f"--seconds {seconds} is not finite; give a number of seconds, as in 1")
    if name == "null":
        _null(parts, seconds, options.numbers(workers, "--workers"), picture, quiet, json)
    else:
        _kernels(parts, seconds, options.numbers(threads, "--threads"), picture, quiet, json)


def _kernels(
    parts: str | None, seconds: float, threads: tuple[int, ...], picture: Path | None, quiet: bool, json: bool
) -> None:
    from paceline.kernels.measure import bench as measuring
    from paceline.kernels.measure import figures

    part_names = _parts(parts, "kernels", tuple(measuring.PARTS))
    if picture is not None and "layers" not in part_names:
        raise UsageError("--picture draws the steps of part layers, which is not among --parts")
    benchmark = measuring.bench(part_names, seconds, threads, saying(quiet))
    if picture is not None:
        picture.write_text(figures.picture(benchmark), encoding="utf-8")
    if json:
        print_json(benchmark.as_dict())
        return
    print(figures.tables(benchmark))


def _null(
    parts: str | None, seconds: float, workers: Sequence[int], picture: Path | None, quiet: bool, json: bool
) -> None:
    from paceline.interfaces.api.planning import null_model
    from paceline.interfaces.cli.tables import table

    if picture is not None:
        raise UsageError("--picture draws the roofline of `paceline bench kernels`; leave it out")
    part_names = _parts(parts, "null", null_model.PARTS)
    benchmark = null_model.bench(part_names, workers, seconds, saying(quiet), len(os.sched_getaffinity(0)))
    if json:
        print_json(benchmark.as_dict())
        return
    print(table(benchmark))


def _parts(text: str | None, name: str, allowed: Sequence[str]) -> tuple[str, ...]:
    part_names = tuple(text.split(",")) if text is not None else tuple(allowed)
    unknown = next((part for part in part_names if part not in allowed), None)
    if unknown is not None:
        raise UsageError(f"{name} has no part {unknown!r}; {suggest(unknown, allowed)}")
    return part_names
