"""The memory of a worker: bytes of its own, besides shared memory, the interpreter and files of libraries.

`heap` has the formula. A profile measures real workers of this very model and scales it; a card alone does not. Shared
memory (the vectors of a collective, a server's versions) is not a worker's own.
"""

from __future__ import annotations

import math

from paceline.planner.costs import Costs
from paceline.planner.divisions import ModelDivision
from paceline.planner.heap import replica_bytes, stage_bytes
from paceline.planner.model_cost import ModelCost
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan


def worker_memory(plan: Plan, costs: Costs, batch: int, division: ModelDivision | None) -> int:
    """Return the bytes that the largest worker needs."""
    samples = samples_of(plan, batch)
    found, kind = formula(plan, costs.cost(samples), division)
    return round(found * costs.heap(samples, kind))


def samples_of(plan: Plan, batch: int) -> int:
    """Return the samples of which a worker computes the gradient at once."""
    share = plan.parts if plan.traits.keeps_step or plan.traits.gathers else 1
    return math.ceil(batch / max(1, share))


def formula(plan: Plan, cost: ModelCost, division: ModelDivision | None) -> tuple[float, str]:
    """Return the bytes that the formula gives, and of which kind of worker they are."""
    if isinstance(plan.method, Pipeline):
        counted = division.memory if division is not None and division.memory else _pipeline(plan, cost)
        return stage_bytes(cost, counted), "stages"
    if division is not None and division.held:
        kind = "parts" if division.computed else "shares"
        return replica_bytes(cost, kind, division.held, division.mean_share), kind
    return replica_bytes(cost, how(plan)), how(plan)


def how(plan: Plan) -> str:
    """Return how a worker exchanges gradients, as `heap.COPIES` has it."""
    if plan.workers == 1:
        return "alone"
    if isinstance(plan.method, NativeDdp):
        return "ddp"
    return "vector" if plan.traits.keeps_step else "server"


def _pipeline(plan: Plan, cost: ModelCost) -> float:
    """Return about the bytes of tensors of a worker with some stages, if stages are alike."""
    assert isinstance(plan.method, Pipeline)
    stages, micro = plan.method.stages(plan.workers), plan.method.micro_batches
    kept = cost.activation_bytes * min(1.0, stages / micro) + (cost.peak_bytes - cost.activation_bytes) / micro
    return (3 * cost.parameter_bytes + cost.state_bytes + kept) / stages + cost.batch_bytes
