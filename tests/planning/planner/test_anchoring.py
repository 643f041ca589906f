"""What a plan that was measured says of others of its family."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.planning.planner.card import Overhead
from paceline.planning.planner.costs import Calibrated
from paceline.planning.planner.facts import Facts, ModelDivision
from paceline.planning.planner.methods import predict
from paceline.planning.planner.profiled import Profiled, learn
from paceline.plans.plan import make
from tests.planning.planner.cards import costs

FACTS = Facts(100, 40_000, 40_000)
DIVISION = ModelDivision(1000.0, 0, 2, 2, 0.5, {"0": 0.5})


@pytest.mark.parametrize("name", ["ring", "downpour", "ddp", "tensor"])
def test_a_plan_that_was_measured_is_predicted_as_it_was(name: str) -> None:
    plan = make(name, workers=2)
    found = Profiled(costs(), [])
    facts = replace(FACTS, division=DIVISION) if name == "tensor" else FACTS
    took = 1.3 * predict(plan, found, facts).seconds
    learn(found, plan, facts, took, 0)
    assert predict(plan, found, facts).seconds == pytest.approx(took)


def test_others_of_the_family_take_as_much_longer() -> None:
    found, ring, tree = Profiled(costs(), []), make("ring", workers=2), make("tree", workers=2)
    before = predict(tree, found, FACTS)
    own = predict(ring, found, FACTS).terms.own
    learn(found, ring, FACTS, own + 3 * predict(ring, found, FACTS).terms.rest, 0)
    after = predict(tree, found, FACTS)
    assert after.terms.own == before.terms.own
    assert after.terms.rest == pytest.approx(3 * before.terms.rest)
    assert predict(make("ddp", workers=2), found, FACTS).terms.rest > 0  # of another family, as before


def test_workers_that_were_weighed_scale_those_that_exchange_alike() -> None:
    found, ring = Profiled(costs(), []), make("ring", workers=2)
    before = predict(ring, found, FACTS).memory
    learn(found, ring, FACTS, 1.0, 2 * before)
    assert predict(ring, found, FACTS).memory == pytest.approx(2 * before, rel=0.01)
    assert predict(make("tree", workers=2), found, FACTS).memory == pytest.approx(2 * before, rel=0.01)


def test_a_card_may_say_how_far_plans_are_off() -> None:
    base = costs()
    card = replace(base.card, overheads=(Overhead("meeting", 2, 2.0, 0.2),))
    slower = Calibrated(card, base.costs)
    slower.cost(100)
    ring = make("ring", workers=2)
    assert predict(ring, slower, FACTS).terms.rest == pytest.approx(2 * predict(ring, base, FACTS).terms.rest)


def test_three_short_steps_on_two_cores_run_one_after_the_other() -> None:
    base = costs()
    two = Calibrated(replace(base.card, cores=2), base.costs)
    two.cost(100)
    three, four = (predict(make("ring", workers=count), two, FACTS) for count in (3, 4))
    assert three.terms.compute + three.terms.wait == pytest.approx(three.terms.compute / 1.5 * 2)
    assert four.terms.wait == 0
