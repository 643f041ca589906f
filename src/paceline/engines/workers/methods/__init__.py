"""The walk of each method: a generator that does what a worker does between two gradients.

A walk requests the gradient of some chunks, and is sent it:

    request = next(walk)                    # which chunks, from which version of the parameters
    request = walk.send(computed)           # their gradient; None: no more gradients will come

Its driver computes: a worker process (`engines.workers.worker`), or the user's own loop (`loop_worker`). Methods that
decide themselves when to compute have no walk: `coordinated` and `ddp` train a worker process as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.engines.workers.arena import Arena
from paceline.engines.workers.methods.all_reduce import all_reduce
from paceline.engines.workers.methods.alone import alone
from paceline.engines.workers.methods.local_steps import gossip, local_steps
from paceline.engines.workers.methods.runner import PlanRunner, Walk
from paceline.engines.workers.methods.server import serve
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer

#: The walks of methods without a server, over any transport: called with a runner and the method.
WALKS: dict[type, Callable[[PlanRunner, Any], Walk]] = {
    Alone: alone,
    AllReduce: all_reduce,
    LocalSteps: local_steps,
    Gossip: gossip,
}
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
    return WALKS[type(method)](runner, method) if type(method) in WALKS else None
