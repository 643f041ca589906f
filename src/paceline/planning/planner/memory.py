"""The memory of a worker: bytes of its own, besides shared memory, the interpreter and files of libraries.

A profile measures real workers of this very model and scales it; a card alone does not. Shared
memory (the vectors of a collective, a server's versions) is not a worker's own.
"""

from __future__ import annotations

import math

from paceline.planning.planner.costs import Costs
from paceline.planning.planner.facts import ModelDivision
from paceline.planning.planner.model_cost import ModelCost
from paceline.plans.plan import Plan

# --- The heap of a worker, from what its step makes: a formula whose coefficients were fitted to real workers ---------
#
#     worker    BESIDES + COPIES x parameters + STATE x optimizer's state + STEP x tensors of a step
#               + CONVOLUTION x bytes of convolutions + RECURRENT, once
#     stages    BESIDES + STAGES x tensors of the stages + RECURRENT, once
#
# The most bytes that a step's tensors take at once are counted in fake mode. Workers keep freed memory for speed, so
# the heap has gaps between tensors; gradients are allocated and freed in every step, and leave the most. Convolutions
# also make copies of which the dispatcher knows nothing, and oneDNN's recurrent layers keep some MiB whatever their
# size.
#
# The figures are those of `benchmarks/prediction/memory.py`, by workers that trained the jobs on which cards are
# fitted.

BESIDES = 0.19e6
#: Copies of the parameters, by how a worker exchanges gradients.
COPIES = {"alone": 8.6, "vector": 8.9, "server": 7.3, "ddp": 10.2, "parts": 12.0, "shares": 10.0}
STATE, STEP, CONVOLUTION, RECURRENT = 0.8, 1.85, 1.1, 4.7e6
STAGES = 1.65
WORKSPACE = 3 << 19  # bytes in the count of stages for small objects and libraries, which RECURRENT and BESIDES have


def replica_bytes(cost: ModelCost, how: str, parameter_share: float = 1.0, computed: float = 1.0) -> float:
    """Return the bytes of a worker with a replica, or with parts of layers.

    how        a key of `COPIES`
    parameter_share   the share of the parameters that it holds
    computed   the share of the layers that it computes; what lies between them is mostly whole
    """
    step = max(0, cost.peak_bytes - cost.parameter_bytes) * (1 + computed) / 2 + cost.batch_bytes
    state = 0.0 if how == "server" else STATE * parameter_share * cost.state_bytes
    copied_share = parameter_share if how == "parts" else 1.0
    return _besides(cost) + COPIES[how] * copied_share * cost.parameter_bytes + state + STEP * step


def stage_bytes(cost: ModelCost, counted: float) -> float:
    """Return the bytes of a worker with stages whose tensors were counted by real micro-batches."""
    return BESIDES + RECURRENT * ("recurrent" in cost.kinds) + STAGES * max(0.0, counted - WORKSPACE)


def _besides(cost: ModelCost) -> float:
    convolutions = CONVOLUTION * cost.kinds.get("convolution", 0.0)
    return BESIDES + convolutions + RECURRENT * ("recurrent" in cost.kinds)


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
