"""What a worker does between two gradients: a generator that requests the gradient of some chunks, and is sent it.

    request = next(walk)                    # which chunks, from which version of the parameters
    request = walk.send(computed)           # their gradient; None: no more gradients will come

Its driver computes: a worker process (`engines.workers.worker`), or the user's own loop (`loop_worker`). Methods with a
program have theirs from `engines.workers.performer`; those whose server lies in shared memory have one each. Methods
that decide themselves when to compute have none: `ddp` trains a worker process as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.engines.workers.arena import Arena
from paceline.engines.workers.methods.runner import PlanRunner, Walk
from paceline.engines.workers.methods.server import serve
from paceline.engines.workers.performer import perform
from paceline.plans.methods import Synchronous
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer

#: The walks of methods whose server lies in shared memory: called with the arena as well.
SERVER_WALKS: dict[type, Callable[[PlanRunner, Any, Arena], Walk]] = {
    ParameterServer: serve,
    GatheringServer: serve,
    CentreServer: serve,
    PairwiseGossip: serve,
    Hogwild: serve,
}


def walk_of(runner: PlanRunner, arena: Arena) -> Walk | None:
    """Start the walk of the runner's method on one machine; None if the method decides itself when to compute."""
    method = runner.plan.method
    if type(method) in SERVER_WALKS:
        return SERVER_WALKS[type(method)](runner, method, arena)
    return perform(runner, method, arena) if isinstance(method, Synchronous) else None
