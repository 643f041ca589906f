"""The memory of a worker: bytes of its own, besides shared memory, the interpreter and files of libraries.

`heap` has the formula. A profile measures real workers of this very model and scales it; a card alone does not. Shared
memory (the vectors of a collective, a server's versions) is not a worker's own.
"""

from __future__ import annotations

import math

from paceline.planning.planner.costs import Costs
from paceline.planning.planner.divisions import ModelDivision
from paceline.planning.planner.heap import replica_bytes, stage_bytes
from paceline.planning.planner.model_cost import ModelCost
from paceline.plans.plan import Plan


def worker_memory(plan: Plan, costs: Costs, batch: int, division: ModelDivision | None) -> int:
    """Return the bytes that the largest worker needs."""
    samples = samples_of(plan, batch)
    size, kind = formula(plan, costs.cost(samples), division)
    return round(size * costs.heap(samples, kind))


def samples_of(plan: Plan, batch: int) -> int:
    """Return the samples of which a worker computes the gradient at once."""
    share = plan.parts if plan.traits.synchronous or plan.traits.gathers else 1
    return math.ceil(batch / max(1, share))


def formula(plan: Plan, cost: ModelCost, division: ModelDivision | None) -> tuple[float, str]:
    """Return the bytes that the formula gives, and of which kind of worker they are."""
    if (tensors := plan.method.part_bytes(plan.workers, cost)) is not None:
        return stage_bytes(cost, (division.memory if division is not None else 0) or tensors), plan.method.copies
    if division is not None and division.held:
        kind = "parts" if division.computed else "shares"
        return replica_bytes(cost, kind, division.held, division.mean_share), kind
    return replica_bytes(cost, how(plan)), how(plan)


def how(plan: Plan) -> str:
    """Return how a worker exchanges gradients, as `heap.COPIES` has it."""
    return "alone" if plan.workers == 1 else plan.method.copies
