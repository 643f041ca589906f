"""Figures of a validation, worked out by hand; and how a table of them changes intervals."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.planning.planner import history
from paceline.planning.planner.prediction import Prediction
from paceline.planning.planner.validating import check, kendall, validation
from paceline.plans.methods.prediction import Terms
from paceline.plans.plan import Plan
from tests.planning.planner.cards import CARD


def _predicted(plan: str, seconds: float, error: float = 0.1) -> Prediction:
    return Prediction(Plan.parse(plan), "autograd", "calibrated", 100, Terms(seconds, 0.0), error, 0.0, 0)


def test_error_bias_regret_and_coverage() -> None:
    checks = [
        check(_predicted("sequential", 1.0), [1.0, 1.0, 1.0, 1.0]),
        check(_predicted("ring:workers=2", 0.9), [1.2, 1.2, 1.2, 1.2]),
        check(_predicted("downpour:workers=2", 2.0), [2.0, 2.2, 2.0, 2.2]),
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
    checks = [check(_predicted("sequential", 1.0, 0.1), [1.3, 1.3]) for _ in range(25)]
    history.append(history.entries_of(validation("a job", checks), CARD, "2026-01-01", 1.0), file)
    entries = history.read(file)
    assert len(entries) == 25
    by = history.factor(entries, CARD, "calibrated")
    assert history.widened(_predicted("sequential", 1.0, 0.1), by).high == pytest.approx(1.3, rel=1e-3)
    assert history.factor(entries, CARD, "profiled") == 1.0
    assert history.factor(entries[:5], CARD, "calibrated") == 1.0


def test_lines_of_another_version_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_text('{"plan": "ring"}\nnot JSON\n')
    assert history.read(tmp_path / "table.jsonl") == []
    assert history.read(tmp_path / "none.jsonl") == []
