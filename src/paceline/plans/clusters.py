"""Which plans several machines do not run, why, and what to use instead."""

from __future__ import annotations

from paceline.errors import PlanError
from paceline.plans.plan import Plan


def check_method(plan: Plan) -> None:
    """Raise PlanError if a cluster cannot run the plan."""
    if why := plan.traits.one_machine:
        raise PlanError(f"plan {plan.name} does not run on a cluster: {why}")
