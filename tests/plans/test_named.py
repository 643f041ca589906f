"""Plans by their constructors, aliases and groups."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path

import pytest

import paceline
from paceline.errors import PlanError
from paceline.plans.groups import OTHERS, described, grouped
from paceline.plans.named import class_name, constructors
from paceline.plans.plan import RECIPES, Plan
from paceline.plans.recipe import ALIASES, NEAREST
from tests.each import each

ROOT = Path(__file__).parents[2]


def test_the_stub_for_editors_is_that_of_the_table() -> None:
    write = runpy.run_path(str(ROOT / "docs" / "_site" / "plan_stubs.py"))
    assert write["stub"]() == write["PLACE"].read_text(), "run `python docs/_site/plan_stubs.py`"


@each("plan", sorted(set(RECIPES) - {"table"}))
def test_a_constructor_has_the_options_of_its_plan_and_makes_it(plan: str) -> None:
    build = getattr(paceline, class_name(plan))
    assert list(inspect.signature(build).parameters) == list(RECIPES[plan].options)
    assert RECIPES[plan].about in build.__doc__
    assert build(threads=2) == Plan.parse(f"{plan}:threads=2")


def test_an_unknown_option_of_a_constructor_is_refused_with_what_was_meant() -> None:
    with pytest.raises(PlanError, match="did you mean 'workers'"):
        paceline.Downpour(worker=4)  # type: ignore[call-arg]


def test_dir_lists_every_constructor() -> None:
    assert set(constructors()) <= set(dir(paceline))


@each("alias", ALIASES)
def test_an_alias_is_a_plan_under_another_name(alias: str) -> None:
    assert Plan.parse(alias) == Plan.parse(ALIASES[alias])
    assert Plan.parse(alias.upper().replace("_", "-"), 3).workers == Plan.parse(ALIASES[alias], 3).workers
    assert alias not in RECIPES


def test_options_of_the_user_come_before_those_of_an_alias() -> None:
    assert Plan.parse("ad_psgd:mode=synchronous") == Plan.parse("gossip:mode=synchronous")


@pytest.mark.parametrize("name", sorted(set(NEAREST) - set(RECIPES)))
def test_what_does_not_exist_is_refused_with_what_comes_nearest(name: str) -> None:
    with pytest.raises(PlanError, match=NEAREST[name].split(" ")[0]):
        Plan.parse(name)


def test_every_plan_is_in_one_group() -> None:
    listed = [name for names in grouped().values() for name in names]
    assert sorted(listed) == sorted(RECIPES)
    assert OTHERS not in grouped(), "give the new plans a group in plans/groups.py"
    assert [plan["name"] for plans in described().values() for plan in plans] == listed
