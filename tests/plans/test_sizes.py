"""Chunks of unequal sizes, as a plan's option states them."""

from __future__ import annotations

import math

import pytest

from paceline.errors import PlanError
from paceline.plans.plan import Plan, make, sizes_by


def test_there_are_as_many_workers_as_sizes() -> None:
    assert Plan.parse("ring:sizes=2+1+1").workers == 3
    assert Plan.parse("sequential:sizes=2+1").parts == 2
    assert Plan.parse("tree:sizes=3+1").agenda(8, 8).sizes == (3, 1)


def test_equal_chunks_have_no_sizes() -> None:
    assert make("ring").sizes == ()
    assert make("ring", sizes="").workers == 2


@pytest.mark.parametrize("text", ["ring:sizes=2+0", "ring:sizes=a+1", "ring:sizes=2", "ring:sizes=2+1,workers=3"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="sizes="):
        Plan.parse(text, 2)


def test_averaged_replicas_take_no_sizes() -> None:
    with pytest.raises(PlanError, match="no option 'sizes'"):
        Plan.parse("local_sgd:sizes=2+1")


@pytest.mark.parametrize(
    ("speeds", "sizes"),
    [
        ([100.0, 100.0], "1+1"),
        ([200.0, 100.0], "2+1"),
        ([310.0, 100.0], "3+1"),
        ([150.0, 100.0], "3+2"),
        ([130.0, 240.0, 100.0], "4+7+3"),
        ([100.0, math.nan], ""),
    ],
)
def test_sizes_follow_speeds(speeds: list[float], sizes: str) -> None:
    assert sizes_by(speeds) == sizes
