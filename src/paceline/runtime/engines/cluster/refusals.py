"""Whether the nodes that a launcher has started fit a plan."""

from __future__ import annotations

from paceline.errors import PlanError
from paceline.plans.plan import Plan, check_method
from paceline.runtime.engines.cluster.roster import Roster


def check(plan: Plan, roster: Roster, resumed: bool = False) -> None:
    """Raise PlanError if a cluster cannot run the plan, or not with so many nodes.

    A run can be resumed by fewer nodes where all workers hold the same: they compute the chunks of those that are gone.
    """
    check_method(plan)
    fewer = resumed and plan.traits.agrees and roster.nodes < plan.workers
    if plan.workers != roster.nodes and not fewer:
        raise PlanError(
            f"plan {plan} has {plan.workers} workers, and {roster.launcher} has started {roster.nodes} nodes, which "
            "have a worker each: leave the number of workers out, or start as many nodes"
        )
