"""paceline bench"""

from __future__ import annotations

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
        str, typer.Option(help="Of kernels, with commas between: study, layers, networks, replicas.")
    ] = "study,layers,networks,replicas",
    seconds: Annotated[float, typer.Option(min=0.01, help="For each row, several times.")] = 1.0,
    threads: Annotated[str, typer.Option(help="Numbers of threads, with commas between.")] = "1,2,4,8",
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the roofline here, as SVG.")] = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Measure this machine against what others report.

    `kernels`: a published study's small CNN as the study ran it, layer by layer, and as one piece of machine code;
    other small networks against PyTorch in its best mode; many models at once.
    """
    if name not in NAMES:
        raise UsageError(f"there is no bench {name!r}; {suggest(name, NAMES)}")
    from paceline.kernels.measure import bench as measuring

    wanted = tuple(parts.split(","))
    wrong = next((part for part in wanted if part not in measuring.PARTS), None)
    if wrong is not None:
        raise UsageError(f"kernels has no part {wrong!r}; {suggest(wrong, measuring.PARTS)}")
    counts = options.numbers(threads, "--threads")
    found = measuring.bench(
        wanted, seconds, counts, lambda line: None if quiet else console.print(line, style="dim", markup=False)
    )
    if picture is not None:
        picture.write_text(measuring.picture(found))
    if json:
        print_json(found.as_dict())
        return
    print(measuring.tables(found))
