"""The choice: what is ranked first, and how it is explained."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.planning.planner import validating
from paceline.planning.planner.choosing import DOUBT, MEASURED, choose, corrected, finalists, flips, measured_as
from paceline.planning.planner.prediction import Prediction
from paceline.planning.planner.validating import check, kendall, validation
from paceline.plans.methods.prediction import Terms
from paceline.plans.plan import Plan
from tests.planning.planner.cards import CARD

# --- Figures of a validation, worked out by hand; and how a table of them changes intervals ---------------------------


def _validating_predicted(plan: str, seconds: float, error: float = 0.1) -> Prediction:
    return Prediction(Plan.parse(plan), "autograd", "calibrated", 100, Terms(seconds, 0.0), error, 0.0, 0)


def test_error_bias_regret_and_coverage() -> None:
    checks = [
        check(_validating_predicted("sequential", 1.0), [1.0, 1.0, 1.0, 1.0]),
        check(_validating_predicted("ring:workers=2", 0.9), [1.2, 1.2, 1.2, 1.2]),
        check(_validating_predicted("downpour:workers=2", 2.0), [2.0, 2.2, 2.0, 2.2]),
    ]
    found = validation("a job", checks)
    assert found.error == pytest.approx(1 - 2 / 2.1)
    assert found.bias == pytest.approx(2 / 2.1 - 1)
    assert found.regret == pytest.approx(0.2)
    assert (found.chosen, found.best) == ("ring:workers=2", "sequential")
    assert found.coverage == pytest.approx(2 / 3)
    assert found.rank_correlation == pytest.approx(1 / 3)
    assert checks[2].noise == pytest.approx(1 - 2.0 / 2.2)
    assert "regret 20.0%: predicted best ring:workers=2, measured best sequential" in str(found)
    assert "<td>ring:workers=2</td>" in found._repr_html_()


def test_kendall() -> None:
    assert kendall([1, 2, 3], [10, 20, 30]) == 1.0
    assert kendall([1, 2, 3], [30, 20, 10]) == -1.0
    assert kendall([1], [1]) == 1.0


def test_intervals_follow_the_table(tmp_path: Path) -> None:
    file = tmp_path / "validations.jsonl"
    checks = [check(_validating_predicted("sequential", 1.0, 0.1), [1.3, 1.3]) for _ in range(25)]
    validating.append(validating.entries_of(validation("a job", checks), CARD, "2026-01-01", 1.0), file)
    entries = validating.read(file)
    assert len(entries) == 25
    by = validating.factor(entries, CARD, "calibrated")
    assert validating.widened(_validating_predicted("sequential", 1.0, 0.1), by).high == pytest.approx(1.3, rel=1e-3)
    assert validating.factor(entries, CARD, "profiled") == 1.0
    assert validating.factor(entries[:5], CARD, "calibrated") == 1.0


def test_lines_of_another_version_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_text('{"plan": "ring"}\nnot JSON\n')
    assert validating.read(tmp_path / "table.jsonl") == []
    assert validating.read(tmp_path / "none.jsonl") == []


# --- Which plans of a choice are measured, and what becomes of the others ---------------------------------------------


def _predicted(plan: str, seconds: float, error: float = 0.1, ruled_out: str = "") -> Prediction:
    return Prediction(
        Plan.parse(plan), "autograd", "profiled", 10, Terms(seconds, 0.0), error, 0.0, 0, ruled_out=ruled_out
    )


RING, TREE, HALVING = "ring:workers=2", "tree:workers=2", "halving_doubling:workers=2"


def test_plans_within_the_interval_of_the_fastest_and_one_process_are_measured() -> None:
    given = [_predicted(RING, 1.0), _predicted("gpipe:workers=2", 1.15), _predicted("ddp:workers=2", 1.5)]
    given.append(_predicted("sequential", 3.0))
    assert [p.plan.name for p in finalists(given, 9)] == ["ring", "gpipe", "sequential"]


def test_the_fastest_plan_of_several_workers_is_measured_however_slow_a_card_says_it_is() -> None:
    given = [_predicted("sequential", 1.0), _predicted(RING, 5.0), _predicted("ddp:workers=2", 6.0)]
    assert [p.plan.name for p in finalists(given, 9)] == ["sequential", "ring"]


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
