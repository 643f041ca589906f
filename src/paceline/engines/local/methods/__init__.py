"""What a worker of the local engine does between gradients: one generator per method.

A generator asks for the gradient of some chunks, is sent it, and goes on:

    request = next(walk)                    # which chunks, from which version of the parameters
    request = walk.send(computed)           # their gradient; None: no more gradients will come

Whoever drives it computes: a worker process (`engines.local.worker`), or the user's own loop (`loop_worker`). Methods
that cannot be driven this way, since they decide when to compute, train a worker process as a whole (`WHOLE`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.engines.local.methods.all_reduce import all_reduce
from paceline.engines.local.methods.alone import alone
from paceline.engines.local.methods.local_steps import gossip, local_steps
from paceline.engines.local.methods.runner import PlanRunner, Walk
from paceline.engines.local.methods.server import serve
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer

#: The walk of each method: called with a runner and the method.
WALKS: dict[type, Callable[[PlanRunner, Any], Walk]] = {
    Alone: alone,
    AllReduce: all_reduce,
    LocalSteps: local_steps,
    Gossip: gossip,
    ParameterServer: serve,
    GatheringServer: serve,
    CentreServer: serve,
    PairwiseGossip: serve,
    Hogwild: serve,
}


def walk_of(runner: PlanRunner) -> Walk:
    method = runner.plan.method
    return WALKS[type(method)](runner, method)
