"""The command `paceline draw`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UsageError
from paceline.interfaces.cli import options

if TYPE_CHECKING:
    from paceline.plans.plan import Plan
    from paceline.training.jobs.job import Job


def draw(
    plan: options.PlanOrRun,
    workers: options.Workers = None,
    job: options.MemoryJob = None,
    data_dir: options.DataDir = None,
    job_args: options.JobArgs = None,
    page: options.Page = None,
) -> None:
    """Draw what the workers of PLAN do, as plain text on standard output.

    A synchronous plan is drawn as a table: which worker sends which part to which other, step by step. A pipeline is
    drawn as a timetable, ticks across and workers down, in colours on a terminal; a run folder adds the measured
    times, and --job the memory that the workers need. Other plans are drawn as a timeline of a small simulated cluster
    in which some workers are slower than others.
    """
    from paceline.planning.explain.drawing import draw as picture
    from paceline.planning.explain.drawing import draw_run, open_run, write_page
    from paceline.plans.plan import Plan

    is_run = "/" in plan.partition(":")[0] or Path(plan).is_dir()
    what, colours = open_run(Path(plan)) if is_run else Plan.parse(plan, workers), sys.stdout.isatty()
    drawn = what if isinstance(what, Plan) else what.plan
    chosen = options.open_job_or_none(job, data_dir, job_args, None)
    more = [] if chosen is None else [memory_for(chosen, drawn)]
    if page is not None:
        write_page(what, page, more)
    sys.stdout.write((picture(what, colours, more) if isinstance(what, Plan) else draw_run(what, colours, more)) + "\n")


def memory_for(job: Job, plan: Plan) -> str:
    from paceline.runtime.engines.setup import memory_line, set_up

    if not plan.traits.divided:
        raise UsageError(
            f"--job reports the memory of workers with parts of a model, and under plan {plan.name} each has all of it"
        )
    setup = set_up(job, plan, "virtual")
    line = memory_line(setup)
    return f"The layers are those of an example network. {line}" if setup.split is not None else line
