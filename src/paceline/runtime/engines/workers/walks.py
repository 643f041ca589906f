"""What a worker does between two gradients: a generator that requests the gradient of some chunks, and is sent it.

    request = next(walk)                    # which chunks, from which version of the parameters
    request = walk.send(computed)           # their gradient; None: no more gradients will come

Its driver computes: a worker process (`engines.workers.worker`), or the user's own loop (`loop_worker`). The walk runs
the program of a method: `performer` answers it in a group that keeps step, `methods.server` at a desk and its shards.
Methods that decide themselves when to compute have none: `ddp` trains a worker process as a whole.
"""

from __future__ import annotations

from paceline.plans.plan import program_of
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.methods.runner import PlanRunner, Walk
from paceline.runtime.engines.workers.methods.server import serve
from paceline.runtime.engines.workers.performer import perform


def walk_of(runner: PlanRunner, arena: Arena) -> Walk | None:
    """Start the walk of the runner's method on one machine; None if the method decides itself when to compute."""
    plan = runner.plan
    if plan.method.server is not None:
        return serve(runner, plan.method.server, arena)
    return perform(runner, program_of(plan), arena) if plan.traits.traced else None
