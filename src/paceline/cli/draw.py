"""paceline draw"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.plans.plan import Plan


def draw(
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN|RUN", help="A plan's name and options, as in ring:workers=3; or a run's folder."),
    ],
    workers: options.Workers = None,
    job: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Of a pipeline: tell the memory that its workers take for JOB."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=options.writable, help="Of a pipeline: write the picture to this HTML file, too."
        ),
    ] = None,
) -> None:
    """Draw what the workers of PLAN do, as plain text on standard output.

    A synchronous plan is drawn as a table: who sends which part to whom, step by step. A pipeline is drawn as a
    timetable, ticks across and workers down, in colours on a terminal; of a run's folder, with how it was measured
    under it; with --job, how much memory its workers take. Other plans are drawn as a timeline of a small made-up
    world in which some workers are slower than others.
    """
    from paceline.explain.drawing import draw as picture
    from paceline.explain.drawing import draw_run, opened, write_page
    from paceline.plans.plan import Plan

    is_run = "/" in plan.partition(":")[0] or Path(plan).is_dir()
    what, colours = opened(Path(plan)) if is_run else Plan.parse(plan, workers), sys.stdout.isatty()
    drawn = what if isinstance(what, Plan) else what.plan
    more = [] if job is None else [memory_for(job, drawn)]
    if page is not None:
        write_page(what, page, more)
    sys.stdout.write((picture(what, colours, more) if isinstance(what, Plan) else draw_run(what, colours, more)) + "\n")


def memory_for(job: str, plan: Plan) -> str:
    from paceline.engines.memory_line import memory_line
    from paceline.engines.setup import set_up
    from paceline.plans.methods.pipeline import Pipeline

    if not isinstance(plan.method, Pipeline):
        raise UsageError(f"plan {plan.name} is not cut into stages, of which --job could tell the memory")
    return memory_line(set_up(options.open_job(job, None), plan, "virtual"))
