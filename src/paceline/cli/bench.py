"""paceline bench"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import console, options
from paceline.cli.output import print_json
from paceline.errors import UsageError, suggest

NAMES = ("kernels",)


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to measure: kernels.")] = "kernels",
    parts: Annotated[
        str | None,
        typer.Option(
            help="With commas between: study, layers, networks, replicas, ranks, gpu, algorithms.", show_default="all"
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="For each row, several times.")] = 1.0,
    threads: Annotated[str, typer.Option(help="Numbers of threads, with commas between.")] = "1,2,4,8",
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=options.writable, help="Write the roofline of part layers here, as SVG."),
    ] = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Measure this machine against what others report.

    `kernels`, part by part: study, a published study's small CNN as the study ran it and as one piece of machine code;
    layers, the same step by step; networks, small ones beside PyTorch in its best mode; replicas, many models at once;
    ranks, the study's CNN by 1, 2 and 4 ranks of MPI and by threads within ranks (`mpiexec` is started here);
    gpu, the networks on a GPU, where there is one; algorithms, ways to convolve, what the tuner chose, their errors.
    """
    if name not in NAMES:
        raise UsageError(f"there is no bench {name!r}; {suggest(name, NAMES)}")
    from paceline.kernels.measure import bench as measuring
    from paceline.kernels.measure import tables

    wanted = tuple(parts.split(",")) if parts is not None else tuple(measuring.PARTS)
    wrong = next((part for part in wanted if part not in measuring.PARTS), None)
    if wrong is not None:
        raise UsageError(f"kernels has no part {wrong!r}; {suggest(wrong, measuring.PARTS)}")
    if picture is not None and "layers" not in wanted:
        raise UsageError("--picture draws the steps of part layers, which is not among --parts")
    if not math.isfinite(seconds):
        raise UsageError(f"--seconds {seconds} never ends")
    counts = options.numbers(threads, "--threads")
    found = measuring.bench(
        wanted, seconds, counts, lambda line: None if quiet else console.print(line, style="dim", markup=False)
    )
    if picture is not None:
        picture.write_text(tables.picture(found))
    if json:
        print_json(found.as_dict())
        return
    print(tables.tables(found))
