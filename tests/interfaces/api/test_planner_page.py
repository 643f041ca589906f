"""The planner's pages: every picture is there, and says what the figures say."""

from __future__ import annotations

import dataclasses

from paceline.interfaces.api.planning.planner_page import choice_page, scalings, validation_page
from paceline.planning.planner.choosing import Layer, choose
from paceline.planning.planner.facts import Facts
from paceline.planning.planner.methods import predict
from paceline.planning.planner.simulating import timeline
from paceline.planning.planner.validating import check, validation
from paceline.plans.plan import make
from paceline.runtime.engines.virtual import World, simulate
from tests.planning.planner.cards import costs

FACTS = Facts(100, 40_000, 40_000)


def test_a_choice_is_drawn() -> None:
    plans = (make("sequential"), make("ring", workers=2), make("ring", workers=4), make("tree", workers=2))
    found = choose([predict(plan, costs(), FACTS) for plan in plans], "time", 8 << 30)
    layers = (Layer("encoder", 1e6, 1e5, 1e-3),)
    found = dataclasses.replace(found, command="paceline train job.py --plan ring", layers=layers, roofs=(50.0, 10.0))
    page = choice_page("job", found)
    for title in ("Speed-up against workers", "Cost against time", "Roofline of the layers", "Ranking"):
        assert f"<h2>{title}</h2>" in page
    assert "encoder" in page
    assert page.count("<svg") >= 3
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_it_says_where_more_workers_stop_paying() -> None:
    fast = [predict(make("sequential"), costs(), FACTS), predict(make("ring", workers=2), costs(), FACTS)]
    slow = predict(make("ring", workers=4), costs(), FACTS)
    slow = dataclasses.replace(slow, terms=fast[1].terms.scaled(1.2))
    (found,) = scalings(choose([*fast, slow], "time", 8 << 30))
    assert found.workers == (2, 4)
    assert found.stops == 2
    assert found.sentence.startswith("ring gains from up to 2 workers")


def test_predicted_and_measured_timelines_have_one_scale() -> None:
    plan = make("ring", workers=2)
    predicted = timeline(plan, costs(), FACTS, 4)
    assert len(predicted.rows)
    measured = simulate(plan, plan.agenda(400, 100), World(compute=1e-4, jitter=0.0), 40_000)
    found = validation("job", [check(predict(plan, costs(), FACTS), [0.001, 0.0011])])
    page = validation_page(found, [(str(plan), predicted, measured)])
    end = max(int(each.rows["end"].max()) for each in (predicted, measured))
    assert page.count(f'data-end="{end}"') == 2
    assert page.index("<h4>predicted</h4>") < page.index("<h4>measured</h4>")
