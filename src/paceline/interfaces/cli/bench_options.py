"""The arguments and options of `paceline bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.interfaces.cli.options import writable

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
