"""The command `paceline bench`."""

from __future__ import annotations

import math

from paceline.cli import options
from paceline.cli.console import console
from paceline.cli.output import print_json
from paceline.errors import UsageError, suggest

NAMES = ("kernels",)


def bench(
    name: options.BenchArgument = "kernels",
    parts: options.BenchParts = None,
    seconds: options.BenchSeconds = 1.0,
    threads: options.Threads = "1,2,4,8",
    picture: options.Picture = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Measure this machine and compare it with published figures.

    The parts of `kernels`: study, the small CNN of a published study, as the study ran it and as generated code;
    layers, the same CNN step by step; networks, small networks against PyTorch in its best mode; replicas, many models
    at once; ranks, the CNN trained by 1, 2 and 4 MPI ranks (started here with `mpiexec`) and by threads within ranks;
    gpu, the networks on a GPU if there is one; algorithms, the ways to convolve, the tuner's choice and their errors.
    """
    if name not in NAMES:
        raise UsageError(f"there is no bench {name!r}; {suggest(name, NAMES)}")
    from paceline.kernels.measure import bench as measuring
    from paceline.kernels.measure import tables

    wanted = tuple(parts.split(",")) if parts is not None else tuple(measuring.PARTS)
    unknown = next((part for part in wanted if part not in measuring.PARTS), None)
    if unknown is not None:
        raise UsageError(f"kernels has no part {unknown!r}; {suggest(unknown, measuring.PARTS)}")
    if picture is not None and "layers" not in wanted:
        raise UsageError("--picture draws the steps of part layers, which is not among --parts")
    if not math.isfinite(seconds):
        raise UsageError(f"--seconds {seconds} is not finite; give a number of seconds, as in 1")
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
