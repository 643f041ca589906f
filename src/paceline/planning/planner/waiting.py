"""How long workers wait for the slowest of them, and for a core where there are more workers than cores."""

from __future__ import annotations

import math

from paceline.planning.planner import fitting
from paceline.planning.planner.costs import Costs
from paceline.plans.plan import Plan

SLICE = 3e-3  # seconds for which Linux lets a process run while another one waits for its core


def waiting(costs: Costs, plan: Plan, workers: int, compute: float, steps: int = 1) -> float:
    """Return the seconds, for each step of `compute` seconds, for which a worker waits for the slowest.

    The slowest of `workers` is waited for once in `steps` steps.
    """
    jitter = costs.jitter(plan.workers, plan.threads)
    slowest = fitting.mean_of_largest(jitter, workers) / fitting.mean_of_largest(jitter, 1) - 1.0
    return compute * (slowest / math.sqrt(steps) + crowded(plan, costs.card.cores, compute * steps))


def crowded(plan: Plan, cores: int, seconds: float) -> float:
    """Return by what share the last of more workers than cores is later than if they shared the cores evenly.

    The scheduler of the kernel changes workers after a slice of time. Shorter steps run one after the other: of three
    workers on two cores, one begins when another one has ended.
    """
    turns = plan.workers * plan.threads / cores
    if turns <= 1:
        return 0.0
    return (math.ceil(turns) / turns - 1.0) * min(1.0, SLICE * turns / max(seconds, 1e-9))
