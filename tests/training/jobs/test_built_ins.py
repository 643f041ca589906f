"""The built-in jobs: what a first comparison is made with."""

from __future__ import annotations

from typing import Any

import pytest

import paceline as pl
from paceline.training.jobs.built_ins import built_in


@pytest.mark.parametrize("plan", [pytest.param("sequential", marks=pytest.mark.soak), "downpour:workers=2"])
def test_the_digits_are_learned_and_the_accuracy_does_not_fall_at_the_end(plan: str) -> None:
    run = pl.train(built_in("digits"), plan, engine="virtual", folder=None)
    curve: list[Any] = [evaluation["test_accuracy"] for evaluation in run.history]
    assert curve[-1] > 0.96
    assert max(curve) - curve[-1] < 0.01
    assert min(curve[-4:]) > 0.95  # at a constant learning rate, two evaluations differ by points
