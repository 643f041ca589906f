"""The memory of a worker: bytes of its own, besides shared memory, the interpreter and files of libraries.

    tensors   parameters + optimizer's state + the gradient of the update before + a batch + the most that a step makes
    worker    what libraries take for themselves + heap x tensors

A step's tensors are counted in fake mode. Workers keep freed memory for speed, and the heap has gaps between tensors;
convolutions also make copies of which the dispatcher knows nothing. So a process takes more than its tensors, by a
factor that depends on the model: `heap`. A profile measures it by real workers; a card alone has a typical one.

Shared memory (the vectors of a collective, a server's versions) is not a worker's own.
"""

from __future__ import annotations

import math

from paceline.planner.costs import BESIDES, Costs
from paceline.planner.divisions import ModelDivision
from paceline.planner.model_cost import ModelCost
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.server import Hogwild, PairwiseGossip
from paceline.plans.plan import Plan


def worker_memory(plan: Plan, costs: Costs, batch: int, division: ModelDivision | None) -> int:
    """Return the bytes that the largest worker needs."""
    share = plan.parts if plan.traits.keeps_step or plan.traits.gathers else 1
    samples = math.ceil(batch / max(1, share))
    cost = costs.cost(samples)
    if division is not None and division.memory:
        tensors = division.memory
    elif division is not None and division.held:
        tensors = _parts(cost, division)
    else:
        tensors = _pipeline(plan, cost) if isinstance(plan.method, Pipeline) else _replica(plan, cost)
    return round(BESIDES + costs.heap(samples) * tensors)


def _replica(plan: Plan, cost: ModelCost) -> int:
    """Return the bytes of tensors of a worker with a whole replica."""
    tensors = cost.alone_bytes
    if plan.traits.optimizer_at_server:
        tensors -= cost.parameter_bytes + cost.state_bytes  # they lie in the shard's shared memory
    elif isinstance(plan.method, Hogwild | PairwiseGossip):
        tensors -= cost.parameter_bytes
    elif isinstance(plan.method, NativeDdp):
        tensors += cost.parameter_bytes  # the buckets
    return tensors


def _parts(cost: ModelCost, division: ModelDivision) -> int:
    """Return the bytes of tensors of a worker with parts of layers: by the share of parameters that it holds."""
    lasting = 2 * cost.parameter_bytes + cost.state_bytes
    computed = sum(division.computed.values()) / max(1, len(division.computed))
    return round(division.held * lasting + computed * cost.peak_bytes) + cost.batch_bytes


def _pipeline(plan: Plan, cost: ModelCost) -> int:
    """Return about the bytes of tensors of a worker with some stages, if stages are alike."""
    assert isinstance(plan.method, Pipeline)
    stages, micro = plan.method.stages(plan.workers), plan.method.micro_batches
    kept = cost.activation_bytes * min(1.0, stages / micro) + (cost.peak_bytes - cost.activation_bytes) / micro
    return round((3 * cost.parameter_bytes + cost.state_bytes + kept) / stages) + cost.batch_bytes
