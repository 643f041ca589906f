"""README names the data-parallel plans that several machines do not run."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.errors import PlanError
from paceline.plans.clusters import check_method
from paceline.plans.data_parallel import DATA_PARALLEL, PEERS
from paceline.plans.methods.alone import Alone
from paceline.plans.plan import Plan

README = Path(__file__).parents[2] / "README.md"


def _runs(plan: Plan) -> bool:
    try:
        check_method(plan)
    except PlanError:
        return False
    return True


def test_the_readme_names_the_data_parallel_plans_that_a_cluster_refuses() -> None:
    (said,) = re.findall(
        r"Several machines run all data-parallel plans but (.*?)\. Plans", README.read_text(), re.DOTALL
    )
    plans = [Plan.parse(name, 2) for name in (*DATA_PARALLEL, *PEERS) if name not in ("sequential", "ceiling")]
    refused = {plan.name for plan in plans if not _runs(plan)}
    assert set(re.findall(r"`(\w+)`", said)) - {"gossip"} == refused
    assert all(isinstance(Plan.parse(name).method, Alone) for name in ("sequential", "ceiling"))
    assert "asynchronous `gossip`" in said
    assert not _runs(Plan.parse("gossip:mode=asynchronous", 2))
