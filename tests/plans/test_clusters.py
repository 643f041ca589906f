"""README names the data-parallel plans that several machines do not run."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.errors import PlanError
from paceline.plans.catalogue import DATA_PARALLEL, PEERS
from paceline.plans.methods.all_reduce import Alone
from paceline.plans.plan import Plan, check_method

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "machines.md"


def _runs(plan: Plan) -> bool:
    try:
        check_method(plan)
    except PlanError:
        return False
    return True


def test_the_page_names_the_data_parallel_plans_that_a_cluster_refuses() -> None:
    (text,) = re.findall(r"^Not on several machines: (.*?), pipelines and tensor parallelism", PAGE.read_text(), re.M)
    plans = [Plan.parse(name, 2) for name in (*DATA_PARALLEL, *PEERS) if name not in ("sequential", "ceiling")]
    refused = {plan.name for plan in plans if not _runs(plan)}
    assert set(re.findall(r"`(\w+)`", text)) - {"gossip"} == refused
    assert all(isinstance(Plan.parse(name).method, Alone) for name in ("sequential", "ceiling"))
    assert "asynchronous `gossip`" in text
    assert not _runs(Plan.parse("gossip:mode=asynchronous", 2))
