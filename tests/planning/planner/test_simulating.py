"""Closed forms equal the simulation: without jitter and stragglers both take the same seconds for an update.

Over several updates the simulation of `central` is faster than its closed form: workers that have their sum begin the
next update while it is sent to others.
"""

from __future__ import annotations

import pytest

from paceline.planning.planner.facts import Facts
from paceline.planning.planner.methods import predict
from paceline.planning.planner.simulating import timeline
from paceline.plans.plan import make
from paceline.runtime.runs.trace import Kind
from tests.planning.planner.cards import costs

FACTS = Facts(160, 4_000_000_000, 40_000)  # seconds of exchange, since the trace has whole nanoseconds


@pytest.mark.parametrize("workers", [2, 4, 16])
@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling", "hierarchical", "central"])
def test_all_reduce(name: str, workers: int) -> None:
    plan = make(name, workers=workers)
    predicted = predict(plan, costs(), FACTS)
    trace = timeline(plan, costs(), FACTS, 1)
    assert predicted.seconds == pytest.approx(float(trace.rows["end"].max()) / 1e9, rel=1e-9)


def test_later_updates_of_a_central_worker_overlap() -> None:
    plan, few = make("central", workers=4), Facts(100, 40_000, 40_000)
    predicted = predict(plan, costs(), few)
    trace = timeline(plan, costs(), few, 100)
    assert float(trace.rows["end"].max()) / 1e9 < 100 * predicted.seconds


def test_a_server_with_one_worker_has_nothing_to_wait_for() -> None:
    plan = make("downpour", workers=1)
    predicted = predict(plan, costs(), FACTS)
    assert predicted.terms.wait == pytest.approx(0, abs=1e-12)
    trace = timeline(plan, costs(), FACTS, 20)
    rows = trace.of_kind(Kind.APPLY)
    assert predicted.staleness == 0
    assert (rows["version"] - 1 - rows["base"]).max() == 0
