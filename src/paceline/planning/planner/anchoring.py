"""What a plan that was measured with a model says of the others of its family."""

from __future__ import annotations

from paceline.planning.planner.facts import Facts
from paceline.planning.planner.memory import formula, samples_of
from paceline.planning.planner.methods import overhead_of
from paceline.planning.planner.profiled import Profiled
from paceline.plans.plan import Plan


def learn(costs: Profiled, plan: Plan, facts: Facts, seconds: float, memory: int) -> None:
    """Correct the costs by the seconds of this plan's update and the bytes of a worker, 0 where unknown."""
    costs.overheads.append(overhead_of(plan, costs, facts, seconds))
    if memory:
        samples = samples_of(plan, facts.batch)
        nbytes, kind = formula(plan, costs.cost(samples), facts.division)
        costs.heaps.setdefault(kind, {})[samples] = memory / nbytes
