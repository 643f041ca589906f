from __future__ import annotations

import pytest

from paceline.errors import PlanError
from paceline.interfaces.cli.compare import split_plans
from paceline.plans.plan import RECIPES, Plan
from tests.each import each


def test_options_are_read() -> None:
    plan = Plan.parse(" downpour:workers=4, shards=2 ")
    assert (plan.workers, plan.shards, plan.parts) == (4, 2, 1)
    assert str(plan) == "downpour:workers=4,shards=2"


def test_workers_fill_in_what_the_text_leaves_open() -> None:
    assert Plan.parse("ring", 5).workers == 5
    assert Plan.parse("ring:workers=3", 5).workers == 3
    assert Plan.parse("sequential", 5).workers == 1
    assert Plan.parse(Plan.parse("ring"), 4).workers == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("downpuor", "did you mean 'downpour'"),
        ("ring:wokers=2", "did you mean 'workers'"),
        ("ring:workers", "write key=value"),
        ("ring:workers=two", "is not a whole number"),
        ("ring:workers=0", "at least 1"),
        ("ring:workers=-3", "at least 1"),
        ("easgd:spring=inf", "is not a number of at least 0"),
        ("", "there is no plan ''"),
    ],
)
def test_wrong_words_are_refused_with_the_right_ones(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Plan.parse(text)


@each("name", RECIPES)
def test_every_plan_reads_back_from_its_own_text(name: str) -> None:
    plan = Plan.parse(name)
    assert Plan.parse(str(plan)) == plan
    assert RECIPES[name].about


def test_a_list_of_plans_keeps_options_with_their_plan() -> None:
    assert split_plans("ring, downpour:workers=2,shards=3,sequential") == [
        "ring",
        "downpour:workers=2,shards=3",
        "sequential",
    ]
