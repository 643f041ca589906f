"""paceline report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import console


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs' folders, or folders with some in them, as in runs.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it, instead of report.html and the like.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="html, json, csv, tensorboard (event files) or perfetto (a trace).")
    ] = "html",
) -> None:
    """Make a page of one run, or of several side by side: one file that needs no network.

    A folder with run folders in it, such as that of a comparison, stands for all of them. Other formats carry the same
    figures to other programs.
    """
    from paceline.report import write

    for file in write(runs, output, form):
        console.print(str(file), markup=False, soft_wrap=True)
