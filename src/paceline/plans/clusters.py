"""Which plans several machines do not run, why, and what to use instead; and which keep no checkpoints there."""

from __future__ import annotations

from paceline.errors import PlanError
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.coordinated import Coordinated
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer
from paceline.plans.methods.split_layers import SplitLayers
from paceline.plans.plan import Plan

IN_STEP = "ring, tree, downpour, ssp, local_sgd and diloco"
#: For each kind of method that a cluster does not run: why, and what to use.
REFUSED: dict[type, tuple[str, str]] = {
    Alone: ("its workers exchange nothing", f"plans for several nodes are {IN_STEP}"),
    GatheringServer: ("its server lies in the memory of one machine", "on several machines use downpour, ssp or ring"),
    CentreServer: ("its centre lies in the memory of one machine", "use its mode=synchronous, or local_sgd"),
    PairwiseGossip: ("its pairs average in the memory of one machine", "use gossip with mode=synchronous"),
    Hogwild: ("its workers write into one memory", f"on several machines use {IN_STEP}"),
    Coordinated: ("its vectors lie in the memory of one machine", f"on several machines use {IN_STEP}"),
    SplitLayers: ("its workers exchange parts of layers in the memory of one machine", f"on several use {IN_STEP}"),
    Pipeline: ("its stages exchange activations in the memory of one machine", f"on several machines use {IN_STEP}"),
    NativeDdp: ("PyTorch forms its process group itself, and does not survive a death", "ring computes the same"),
}


def check_method(plan: Plan) -> None:
    """Raise PlanError if a cluster cannot run the plan."""
    method = plan.method
    if not isinstance(method, AllReduce | LocalSteps | Gossip | ParameterServer):
        why, instead = REFUSED[type(method)]
        raise PlanError(f"plan {plan.name} does not run on a cluster: {why}; {instead}")


def no_checkpoints(plan: Plan) -> str:
    """Return why a cluster keeps no checkpoints of runs by this plan; an empty string if it keeps them."""
    if isinstance(plan.method, ParameterServer):
        return (
            "on a cluster its parameters lie on servers of several nodes, which take no common checkpoint; their "
            "backups survive a node that is lost (--backups). With engine='local' it keeps checkpoints, and on a "
            "cluster ring and local_sgd do"
        )
    return ""
