"""paceline draw"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options


def draw(
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN|RUN", help="A plan's name and options, as in ring:workers=3; or a run's folder."),
    ],
    workers: options.Workers = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of a pipeline: write the picture to this HTML file, too.")
    ] = None,
) -> None:
    """Draw what the workers of PLAN do, as plain text on standard output.

    A synchronous plan is drawn as a table: who sends which part to whom, step by step. A pipeline is drawn as a
    timetable, ticks across and workers down, in colours on a terminal; of a run's folder, with how it was measured
    under it. Other plans are drawn as a timeline of a small made-up world in which some workers are slower than others.
    """
    from paceline.drawing import draw as picture
    from paceline.drawing import draw_page, draw_run
    from paceline.plan import Plan

    run = Path(plan) if (Path(plan) / "run.json").is_file() else None
    colours = sys.stdout.isatty()
    sys.stdout.write((draw_run(run, colours) if run else picture(Plan.parse(plan, workers), colours)) + "\n")
    if page is not None:
        page.write_text(draw_page(Plan.parse(plan, workers) if run is None else run))
