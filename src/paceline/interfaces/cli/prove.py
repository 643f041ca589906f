"""The command `paceline prove`."""

from __future__ import annotations

import typer

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console, saying
from paceline.interfaces.cli.output import print_json


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
    from paceline.planning.explain.cluster_proof import prove_cluster
    from paceline.planning.explain.proving import prove_plan
    from paceline.plans.plan import Plan

    parsed = Plan.parse(plan, workers)
    proof = prove_plan(parsed) if machines is None else prove_cluster(parsed, machines, say=saying(json))
    if json:
        print_json(proof.as_dict())
    else:
        console.print(str(proof), soft_wrap=True)
    if proof.holds is False:
        raise typer.Exit(1)
