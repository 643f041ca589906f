"""Which plans of a choice are measured, and what becomes of the others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.planning.planner.finals import DOUBT, MEASURED, corrected, finalists, measured_as
from paceline.planning.planner.prediction import Prediction
from paceline.plans.methods.prediction import Terms
from paceline.plans.plan import Plan


def _predicted(plan: str, seconds: float, error: float = 0.1, ruled_out: str = "") -> Prediction:
    return Prediction(
        Plan.parse(plan), "autograd", "profiled", 10, Terms(seconds, 0.0), error, 0.0, 0, ruled_out=ruled_out
    )


RING, TREE, HALVING = "ring:workers=2", "tree:workers=2", "halving_doubling:workers=2"


def test_plans_within_the_interval_of_the_fastest_and_one_process_are_measured() -> None:
    given = [_predicted(RING, 1.0), _predicted("gpipe:workers=2", 1.15), _predicted("ddp:workers=2", 1.5)]
    given.append(_predicted("sequential", 3.0))
    assert [p.plan.name for p in finalists(given, 9)] == ["ring", "gpipe", "sequential"]


def test_at_most_two_plans_that_are_alike_are_measured() -> None:
    given = [_predicted(RING, 1.0), _predicted(TREE, 1.01), _predicted(HALVING, 1.02), _predicted("sequential", 1.03)]
    assert [p.plan.name for p in finalists(given, 9)] == ["ring", "tree", "sequential"]
    assert len(finalists(given, 1)) == 1
    assert finalists(given, 0) == []


def test_nothing_more_is_measured_once_the_fastest_was() -> None:
    fast = measured_as(_predicted(RING, 1.0), [0.9, 1.0, 1.1])
    assert finalists([fast, _predicted("sequential", 1.05)], 9) == []
    slow = measured_as(_predicted(RING, 1.0), [2.0])
    assert [p.plan.name for p in finalists([slow, _predicted("sequential", 1.05)], 9)] == ["sequential"]


def test_what_is_ruled_out_is_not_measured() -> None:
    assert finalists([_predicted(RING, 1.0, ruled_out="too large")], 9) == []


def test_a_measured_plan_has_the_median_and_the_range_of_its_rounds() -> None:
    found = measured_as(_predicted(RING, 1.0), [2.0, 2.2, 1.9])
    assert (found.level, found.seconds) == (MEASURED, pytest.approx(2.0))
    assert found.high == pytest.approx(2.2)
    assert measured_as(_predicted(RING, 1.0), [2.0]).error == DOUBT


def test_a_plan_that_was_not_measured_is_as_far_off_as_those_like_it() -> None:
    before = [_predicted(RING, 1.0), _predicted(TREE, 1.0), _predicted("gpipe:workers=2", 1.2)]
    found = corrected(before, [measured_as(before[0], [1.5]), *before[1:]])
    assert [round(p.seconds, 6) for p in found] == [1.5, 1.5, 1.2]
    assert found[1].level == "profiled"
    assert math.isclose(found[1].error, 0.1)


def test_what_cannot_train_the_job_stays_ruled_out() -> None:
    before = [_predicted(RING, 1.0), _predicted(TREE, 1.0)]
    out = replace(before[1], ruled_out="it cannot train this job")
    assert corrected(before, [measured_as(before[0], [1.5]), out])[1].ruled_out
