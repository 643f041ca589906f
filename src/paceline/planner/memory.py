"""The memory of a worker: bytes of its own tensors, besides shared memory and the interpreter.

    parameters + gradients + optimizer's state + what the forward pass keeps + one batch + the base of a process

Shared memory (the vectors of a collective, a server's versions) is not a worker's own, and is counted once.
"""

from __future__ import annotations

import math

from paceline.planner.costs import Costs
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan

BESIDES = 3 << 19  # bytes for the workspace of libraries and small objects, as measured for stages of pipelines


def worker_memory(plan: Plan, costs: Costs, batch: int, payload: int) -> int:
    """Return the bytes that the largest worker needs."""
    parts = plan.parts if plan.traits.keeps_step or plan.traits.gathers else 1
    samples = math.ceil(batch / max(1, parts))
    cost = costs.cost(samples)
    if isinstance(plan.method, Pipeline):
        stages = plan.method.stages(plan.workers)
        kept = cost.activation_bytes * min(plan.method.micro_batches, stages)
        return round((3 * cost.parameter_bytes + cost.state_bytes + kept) / stages) + cost.batch_bytes + BESIDES
    state = 0 if plan.traits.optimizer_at_server else cost.state_bytes
    replica = 2 * cost.parameter_bytes + state
    return replica + cost.activation_bytes + 2 * cost.batch_bytes + BESIDES


def shared_memory(plan: Plan, payload: int, served: int) -> int:
    """Return the bytes that all workers share: vectors that are exchanged, or a server's versions."""
    if plan.traits.keeps_step:
        return 2 * payload * plan.workers if plan.workers > 1 else 0
    return served * (plan.workers + 1)
