"""Trials here and in processes: equal results, and a failing one costs only itself."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import TrialStopped
from paceline.interfaces.testing.killed_tunings import disturb, faults
from paceline.planning.tuner.journal import Journal
from paceline.planning.tuner.searches import Search
from paceline.planning.tuner.space import Choice, Float, Space
from paceline.planning.tuner.study import Study
from paceline.planning.tuner.trial import Terms, Trial
from paceline.planning.tuner.trials import Spent, drive
from paceline.planning.tuner.trials.choice import Here
from paceline.planning.tuner.trials.dispatch import Dispatcher
from paceline.planning.tuner.trials.processes import Processes

# --- A tuning whose tuner and workers get SIGKILL loses nothing, repeats nothing and decides the same -----------------


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


def run(
    objective: Any,
    space: dict[str, Any],
    search: str,
    how: str,
    max_t: int = 1,
    states: Path | None = None,
    timeout: float | None = None,
) -> tuple[Study, Spent]:
    proposals, scheduler, total = Search.parse(search).open(Space(space), None, max_t, 0, True, continues=False)
    study = Study(proposals, scheduler, Journal(None), True, total)
    terms = Terms(0, states)
    trials: Any = (
        Here(objective, study.report, terms)
        if how == "here"
        else Dispatcher(Processes(objective, terms, 2), study.report, timeout)
    )
    return study, drive(study, trials)


def curve(trial: Trial) -> float:
    loss = math.inf
    for step in range(trial.start + 1, trial.stop + 1):
        loss = (trial["x"] - 0.3) ** 2 + 1 / step
        trial.report(loss, step)
        if trial.should_prune():
            break
    return loss


def test_processes_find_what_one_process_finds() -> None:
    here, _ = run(curve, {"x": Float(0, 1, count=9)}, "successive_halving:sampler=grid", "here", 9)
    apart, _ = run(curve, {"x": Float(0, 1, count=9)}, "successive_halving:sampler=grid", "processes", 9)
    assert {n: (t.value, t.status, t.reports) for n, t in here.trials.items()} == {
        n: (t.value, t.status, t.reports) for n, t in apart.trials.items()
    }
    assert here.best is not None
    assert here.best.configuration == {"x": 0.25}


def test_a_stopped_trial_keeps_its_last_value() -> None:
    def leaves(trial: Trial) -> None:
        for step in range(1, trial.stop + 1):
            trial.report(trial["x"], step)
            trial.raise_if_stopped()

    study, _ = run(leaves, {"x": [1.0, 2.0, 3.0, 4.0]}, "asha:sampler=grid", "here", 4)
    assert [(t.status, t.step) for t in study.trials.values()] == [("done", 4), *[("stopped", 1)] * 3]
    assert isinstance(TrialStopped(""), Exception)


FAULTS = ["fine", "raises", "nan", "killed", "hangs", "silent", "exits"]


def faulty(trial: Trial) -> Any:
    kind = trial["kind"]
    if kind == "raises":
        raise ValueError("mat1 and mat2 shapes cannot be multiplied")
    if kind == "nan":
        return math.nan
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hangs":
        time.sleep(10_000)
    if kind == "silent":
        return None
    if kind == "exits":
        raise SystemExit(3)
    return 1.0


def test_a_failing_trial_costs_only_itself_and_says_why() -> None:
    study, _ = run(faulty, {"kind": Choice(FAULTS)}, "grid", "processes", timeout=3.0)
    found = {t.configuration["kind"]: t for t in study.trials.values()}
    assert found["fine"].status == "done"
    for kind, says in {
        "raises": "ValueError: mat1 and mat2 shapes",
        "nan": "value is nan",
        "killed": "SIGKILL in 3 attempts",
        "hangs": "silent for 3 s",
        "silent": "returned nothing",
        "exits": "3",
    }.items():
        assert found[kind].status == "failed", kind
        assert says in found[kind].reason, found[kind].reason


def test_a_worker_that_dies_once_costs_nothing(tmp_path: Path) -> None:
    def dies_once(trial: Trial) -> float:
        mark = tmp_path / str(trial.number)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return float(trial.number)

    study, _ = run(dies_once, {"x": [1, 2, 3]}, "grid", "processes")
    assert [t.value for t in study.trials.values()] == [0.0, 1.0, 2.0]


def test_a_leg_goes_on_from_the_state_that_was_saved(tmp_path: Path) -> None:
    def counts(trial: Trial) -> float:
        seen = trial.load() or []
        assert len(seen) == trial.start
        trial.save(seen + list(range(trial.start, trial.stop)))
        return float(trial.number)

    study, _ = run(
        counts, {"x": [1, 2, 3, 4, 5, 6, 7, 8, 9]}, "successive_halving:sampler=grid", "processes", 9, tmp_path
    )
    assert all(t.status != "failed" for t in study.trials.values())
    assert study.trials[0].status == "done"


def test_names_that_the_space_lacks_are_drawn_when_they_are_asked_for() -> None:
    def objective(trial: Trial) -> float:
        rate = trial.suggest_float("lr", 1e-4, 1.0, log=True)
        layers = trial.suggest_int("layers", 1, 3)
        kind = trial.suggest_categorical("kind", ["a", "b"])
        assert (rate, layers, kind) == (
            trial.suggest_float("lr", 1e-4, 1.0, log=True),
            trial.suggest_int("layers", 1, 3),
            trial.suggest_categorical("kind", ["a", "b"]),
        )
        return rate

    here, _ = run(objective, {}, "random", "here")
    apart, _ = run(objective, {}, "random", "processes")
    assert [t.configuration for t in here.trials.values()] == [apart.trials[n].configuration for n in here.trials]
    assert len({t.configuration["lr"] for t in here.trials.values()}) == 32
