"""The choice: what is ranked first, and how it is explained."""

from __future__ import annotations

from dataclasses import replace

from paceline.planning.planner.choosing import choose, flips
from paceline.planning.planner.prediction import Prediction
from paceline.plans.methods.prediction import Terms
from paceline.plans.plan import Plan


def _of(plan: str, compute: float, exchange: float = 0.0, memory: int = 1 << 20, error: float = 0.05) -> Prediction:
    return Prediction(
        Plan.parse(plan), "autograd", "calibrated", 100, Terms(compute, 0.0, exchange), error, 0.0, memory
    )


ONE = _of("sequential", 1e-3)


def test_the_fastest_is_first_if_it_pays() -> None:
    found = choose([ONE, _of("ring:workers=2", 5e-4, 1e-4)], "time", 1 << 30)
    assert found.plan == "ring:workers=2"
    assert "1.67x" in found.sentences[1]


def test_one_process_is_named_where_its_interval_meets_that_of_the_chosen_plan() -> None:
    said = choose([ONE, _of("ring:workers=2", 6e-4, error=0.6)], "time", 1 << 30).sentences
    assert said[-1].startswith("Within the intervals these may be as fast: sequential; `paceline validate`")


def test_one_process_stays_where_two_hardly_gain() -> None:
    found = choose([ONE, _of("ring:workers=2", 9.8e-4)], "time", 1 << 30)
    assert found.plan == "sequential"


def test_what_does_not_fit_is_ruled_out_with_its_reason() -> None:
    found = choose([ONE, _of("ring:workers=2", 1e-4, memory=1 << 30)], "time", 1 << 30)
    assert found.plan == "sequential"
    assert "1,024 MiB" in found.ruled_out[0].ruled_out
    both = choose([ONE, _of("ring:workers=2", 1e-4, memory=6 << 28)], "time", 2 << 30)
    assert "GiB" in both.ruled_out[0].ruled_out


def test_a_choice_is_shown_as_a_table_and_its_reasons() -> None:
    found = choose([ONE, _of("ring:workers=2", 1e-4, memory=1 << 30)], "time", 1 << 30)
    lines = str(found).splitlines()
    assert lines[0] == "Predicted (calibrated)"
    assert lines[2].split()[:4] == ["sequential", "1.00", "ms", "±5%"]
    assert lines[3].startswith("ruled out: ring: ")
    assert "<td>sequential</td>" in found._repr_html_()
    assert repr(found) == "Choice('sequential', goal='time', 1 plans ranked, 1 ruled out)"


def test_plans_that_are_ruled_out_for_one_reason_share_a_line() -> None:
    apart = [replace(_of(name, 1e-3), ruled_out="one memory") for name in ("hogwild:workers=2", "hogwild:workers=3")]
    found = choose(
        [ONE, _of("ring:workers=2", 2e-3), *apart, replace(apart[0], plan=Plan.parse("ring:workers=3"))],
        "time",
        1 << 30,
    )
    assert "ruled out: hogwild, ring:workers=3: one memory" in found.notes()


def test_goals() -> None:
    plans = [ONE, _of("ring:workers=2", 6e-4), _of("ring:workers=4", 3e-4, memory=1 << 24)]
    assert choose(plans, "memory", 1 << 30).plan == "sequential"
    assert choose(plans, "time", 1 << 30).plan == "ring:workers=4"
    cheap = choose(plans, "cost", 1 << 30, 10, lambda p: 2.0 if p.plan.workers == 4 else 1.0)
    assert cheap.plan == "ring:workers=2" or cheap.dollars == tuple(sorted(cheap.dollars))


def test_it_is_said_how_much_faster_an_exchange_would_have_to_be() -> None:
    assert "2.0 times" in flips(ONE, _of("ring:workers=2", 8e-4, 4e-4))
    assert flips(ONE, _of("ring:workers=2", 1.2e-3, 4e-4)) == ""


def test_the_front_holds_what_nothing_beats_in_everything() -> None:
    worse = _of("tree:workers=2", 7e-4, memory=1 << 21)
    found = choose([ONE, _of("ring:workers=2", 5e-4), worse], "time", 1 << 30)
    assert set(found.front) == {"sequential", "ring:workers=2"}


def test_a_table_that_a_search_found_has_to_be_clearly_faster() -> None:
    ring, table = _of("ring:workers=2", 6e-4), "per_layer:workers=2,ways=fc1:columns"
    assert choose([ONE, ring, _of(table, 5.5e-4)], "time", 1 << 30).plan == "ring:workers=2"
    assert choose([ONE, ring, _of(table, 4e-4)], "time", 1 << 30).best.plan.name == "per_layer"
