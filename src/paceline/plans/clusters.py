"""Which plans several machines do not run, why, and what to use instead."""

from __future__ import annotations

from paceline.errors import PlanError
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.coordinated import Coordinated
from paceline.plans.methods.dataflow import Dataflow
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.server import Hogwild, PairwiseGossip, Served
from paceline.plans.methods.split_layers import SplitLayers
from paceline.plans.plan import Plan

IN_STEP = "ring, tree, downpour, ssp, local_sgd and diloco"
#: For each kind of method that a cluster does not run: why, and what to use.
REFUSED: dict[type, tuple[str, str]] = {
    Alone: ("its workers exchange nothing", f"plans for several nodes are {IN_STEP}"),
    PairwiseGossip: ("its pairs average in the memory of one machine", "use gossip with mode=synchronous"),
    Hogwild: ("its workers write into one memory", f"on several machines use {IN_STEP}"),
    Coordinated: ("its vectors lie in the memory of one machine", f"on several machines use {IN_STEP}"),
    SplitLayers: ("its workers exchange parts of layers in the memory of one machine", f"on several use {IN_STEP}"),
    Pipeline: ("its stages exchange activations in the memory of one machine", f"on several machines use {IN_STEP}"),
    Dataflow: ("its operators exchange messages in the memory of one machine", f"on several use {IN_STEP}"),
    NativeDdp: ("PyTorch forms its process group itself, and does not survive a death", "ring computes the same"),
}


def check_method(plan: Plan) -> None:
    """Raise PlanError if a cluster cannot run the plan."""
    method = plan.method
    if not isinstance(method, AllReduce | LocalSteps | Gossip | Served):
        why, instead = REFUSED[type(method)]
        raise PlanError(f"plan {plan.name} does not run on a cluster: {why}; {instead}")
