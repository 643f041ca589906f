"""A tuning whose tuner and workers get SIGKILL loses nothing, repeats nothing and decides the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from paceline.interfaces.testing.killed_tunings import disturb, faults


@pytest.mark.parametrize(
    ("search", "kills"),
    [
        ("successive_halving:sampler=grid", 2),
        *(pytest.param(search, 8, marks=pytest.mark.soak) for search in ("grid", "asha", "pbt", "hyperband")),
    ],
)
def test_a_killed_tuning_goes_on_as_if_nothing_had_happened(search: str, kills: int, tmp_path: Path) -> None:
    record_loss = disturb(tmp_path, search, random.Random(7), kills)
    assert record_loss.tuner + record_loss.workers >= 1
    assert faults(tmp_path, search) == []
