"""Where trials run by default, by durations that are given: nothing here depends on how fast the machine is."""

from __future__ import annotations

import multiprocessing
from functools import partial

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.planning.tuner.trials import choice
from paceline.planning.tuner.trials.choice import STARTING, fastest
from tests.each import each


@each(
    ("apart", "together", "trials", "cores", "way"),
    [
        (0.01, None, 16, 2, "here"),
        (0.01, 0.02, 16, 2, "here"),
        (0.01, 0.001, 16, 2, "stacked"),
        (1.0, None, 16, 2, "processes"),
        (1.0, 0.4, 16, 2, "stacked"),
        (1.0, 0.9, 16, 2, "processes"),
        (100.0, None, 1, 8, "here"),  # a single trial has nothing to run beside
        (100.0, None, 16, 1, "here"),
        (STARTING / 9, None, 16, 2, "here"),
        (STARTING / 7, None, 16, 2, "processes"),
    ],
)
def test_the_way_that_is_done_first_is_taken(
    apart: float, together: float | None, trials: int, cores: int, way: str
) -> None:
    assert fastest(apart, together, trials, cores, "")[0] == way


def job() -> pl.Job:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    return pl.Job(
        lambda: nn.Linear(6, 2),
        (x, (x[:, 0] > 0).long()),
        nn.CrossEntropyLoss(),
        batch_size=10,
        device="cpu",
        optimizer=partial(torch.optim.SGD, lr=0.1),
        gradient_clip_norm=1.0,  # which no stack does
    )


@pytest.mark.parametrize(("seconds", "way"), [(0.001, "here"), (1000.0, "processes")])
def test_a_tuning_says_where_its_trials_run_and_why(seconds: float, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_apart", lambda objective, job: seconds)
    found = pl.tune(job(), {"lr": [0.1, 0.2, 0.3, 0.4]}, "grid", workers=2, folder=None)
    assert found.way == way
    assert "expected for 4 trials: here" in found.why
    assert "not stacked: " in found.why
    assert "gradient_clip_norm" in found.why
    assert [trial.status for trial in found.trials] == ["done"] * 4
    assert not multiprocessing.active_children()


def test_a_trial_here_that_takes_too_long_fails_alone() -> None:
    def slow(trial: pl.Trial) -> float:
        while trial["n"] == 2:
            pass
        return float(trial["n"])

    found = pl.tune(objective=slow, space={"n": [1, 2, 3]}, search="grid", executor="here", timeout=0.5, folder=None)
    assert [trial.status for trial in found.trials] == ["done", "failed", "done"]
    assert "it was silent for" in found.trials[1].reason
