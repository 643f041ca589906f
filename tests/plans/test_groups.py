"""What `paceline plans` says."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from paceline.errors import PlanError
from paceline.interfaces.cli import app, register
from paceline.plans.groups import GROUPS, description, grouped
from paceline.plans.plan import RECIPES
from paceline.plans.recipe import MEANINGS


def test_every_plan_is_in_a_group_and_every_option_has_a_meaning() -> None:
    assert grouped() == GROUPS
    assert {option for recipe in RECIPES.values() for option in recipe.options} == set(MEANINGS)


@pytest.mark.parametrize(("name", "own"), [("downpour", "downpour"), ("1F1B", "one_f_one_b"), ("fsdp", "zero")])
def test_one_plan_is_described_by_any_of_its_names(name: str, own: str) -> None:
    register()
    text, data = (CliRunner().invoke(app, ["plans", name, *more]) for more in ((), ("--json",)))
    found = json.loads(data.stdout)
    assert found == json.loads(json.dumps(description(name)))
    assert found["name"] == own
    assert [each["name"] for each in found["options"]] == list(RECIPES[own].options)
    assert all(each["name"] in text.stdout for each in found["options"])


def test_a_wrong_name_is_told_the_right_one() -> None:
    with pytest.raises(PlanError, match="did you mean 'downpour'"):
        description("downpuor")
