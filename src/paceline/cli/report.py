"""paceline report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import console


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that hold some.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the page goes.")] = Path("report.html"),
) -> None:
    """Make one page."""
    from paceline.report import write_page

    console.print(str(write_page(runs, output)))
