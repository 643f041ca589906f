"""Under which plans a node joins a training that goes on."""

from __future__ import annotations

import pytest

from paceline.plans.plan import RECIPES, Plan
from paceline.runtime.engines.cluster.group_head import refuses_newcomers

SUMMED = {"ring", "tree", "halving_doubling", "hierarchical", "central"}


def test_plans_that_sum_gradients_or_have_servers_let_nodes_join() -> None:
    plans = [Plan.parse(name, 4) for name in RECIPES if name != "table"]
    on_clusters = [plan for plan in plans if not plan.traits.one_machine]
    joined = {plan.name for plan in on_clusters if not refuses_newcomers(plan)}
    assert joined == SUMMED | {plan.name for plan in on_clusters if plan.method.server is not None}


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("ring:canonical=8", True),
        ("ring:canonical=8,sizes=measured", True),
        ("ring:codec=qsgd", True),
        ("ring:codec=onebit", False),
        ("ring:codec=powersgd", False),
        ("local_sgd", False),
        ("gossip", False),
    ],
)
def test_a_newcomer_needs_what_one_worker_can_give(text: str, is_open: bool) -> None:
    assert (not refuses_newcomers(Plan.parse(text, 4))) == is_open
