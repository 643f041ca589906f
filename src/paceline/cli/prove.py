"""paceline prove"""

from __future__ import annotations

import typer

from paceline.cli import console, options
from paceline.cli.output import print_json


def prove(plan: options.PlanArgument, workers: options.Workers = None, json: options.Json = False) -> None:
    """Prove what can be proved of PLAN before anything runs.

    Of a synchronous plan, its table: nobody waits for ever, nothing is overwritten while it is read, the sum is the
    sum of all, and the closed form of its time is the table's time. Of a pipeline, its timetable: every message is
    taken, no version of weights is read that is not there, every gradient is in one update. Of a plan with a server,
    its gate, in every interleaving of a world of at most three workers, any one of which may die at any point.
    """
    from paceline.explain.proving import prove_plan
    from paceline.plans.plan import Plan

    found = prove_plan(Plan.parse(plan, workers))
    if json:
        print_json(found.as_dict())
    else:
        console.print(str(found), markup=False, soft_wrap=True)
    if found.holds is False:
        raise typer.Exit(1)
