"""The commands about plans: `paceline plans`, `paceline draw` and `paceline prove`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.errors import UsageError
from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import console, print_json, saying

if TYPE_CHECKING:
    from paceline.plans.plan import Plan
    from paceline.training.jobs.job import Job


def plans(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this plan and what its options mean.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List all plans in groups, with their options and other names; or show one plan."""
    from paceline.plans.groups import described, description

    if name is not None:
        from paceline.interfaces.cli.tables import show_plan

        details = description(name)
        print_json(details) if json else show_plan(details)
        return
    groups = described()
    if json:
        print_json({"plans": [plan for plans in groups.values() for plan in plans]})
        return
    from paceline.interfaces.cli.tables import show_plans

    show_plans(groups)


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


def prove(
    plan: options.PlanArgument,
    workers: options.Workers = None,
    machines: options.ProvedMachines = None,
    json: options.Json = False,
) -> None:
    """Prove what can be proved about PLAN before anything runs.

    For a synchronous plan, its table: no worker waits for ever, nothing is overwritten while it is read, the sum is
    complete, and the closed form of its time is the table's time. For a pipeline, its timetable: every message is
    received, no version of the weights is read before it exists, and every gradient is in exactly one update. For a
    plan with a server, its gate: every interleaving of up to three workers, any of which may die at any point.

    With --machines, the protocol between desk, shard servers and workers on several machines: every interleaving of a
    small cluster in which a message is lost and one comes twice, or a process dies or is wrongly taken for dead; then
    histories of so many machines, drawn from seeds.
    """
    from paceline.planning.explain.proving import prove_cluster, prove_plan
    from paceline.plans.plan import Plan

    parsed = Plan.parse(plan, workers)
    proof = prove_plan(parsed) if machines is None else prove_cluster(parsed, machines, say=saying(json))
    if json:
        print_json(proof.as_dict())
    else:
        console.print(str(proof), soft_wrap=True)
    if proof.holds is False:
        raise typer.Exit(1)
