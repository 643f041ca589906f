"""Optuna's own conformance tests with its samplers asked and told by the adapter; and its storage, read and written."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")

from optuna.samplers import BaseSampler, RandomSampler, TPESampler  # noqa: E402
from optuna.testing.pytest_samplers import BasicSamplerTestCase, RelativeSamplerTestCase  # noqa: E402

from paceline.algorithms.tuning.schedulers import Fifo  # noqa: E402
from paceline.interfaces.api.tuning.tune import tune  # noqa: E402
from paceline.planning.tuner.journal import Journal  # noqa: E402
from paceline.planning.tuner.optuna import OptunaProposals, Storage  # noqa: E402
from paceline.planning.tuner.space import Float, Space  # noqa: E402
from paceline.planning.tuner.study import Study  # noqa: E402
from paceline.planning.tuner.trial import Terms, Trial  # noqa: E402
from paceline.planning.tuner.trials import drive  # noqa: E402
from paceline.planning.tuner.trials.choice import Here  # noqa: E402


@pytest.fixture
def by_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Study.optimize` runs its trials by the tuner; the objective suggests from the trial that the adapter asked."""

    def optimize(self: Any, objective: Callable[[Any], float], n_trials: int, **rest: Any) -> None:
        proposals = OptunaProposals(self.sampler, Space({}), True, self)
        study = Study(proposals, Fifo(n_trials, 1), Journal(None), True, n_trials)
        drive(study, Here(lambda trial: objective(proposals.asked[trial.number]), study.report, Terms()))
        assert len(study.trials) == n_trials

    monkeypatch.setattr(optuna.study.Study, "optimize", optimize)


@pytest.mark.usefixtures("by_the_adapter")
class TestRandom(BasicSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: RandomSampler(seed=0)


@pytest.mark.usefixtures("by_the_adapter")
class TestTpe(BasicSamplerTestCase, RelativeSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: TPESampler(n_startup_trials=0, multivariate=True, seed=0)


SPACE = {"x": Float(0, 1), "kind": ["a", "b"], "extra": Float(0, 1, when={"kind": "b"})}


def objective(trial: Trial) -> float:
    for step in (1, 2):
        trial.report((trial["x"] - 0.3) ** 2 + 1 / step, step)
        if trial.should_prune():
            return trial.value
    return math.nan if trial["x"] > 0.9 else trial.value


def test_a_storage_shows_the_trials_of_a_tuning(tmp_path: Path) -> None:
    where = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "log")))
    found = tune(
        objective=objective,
        space=SPACE,
        search="asha:reduction_factor=2",
        max_t=2,
        n_trials=12,
        executor="here",
        folder=None,
        storage=where,
    )
    shown = optuna.load_study(study_name="objective", storage=where).trials
    words = {"COMPLETE": "done", "PRUNED": "stopped", "FAIL": "failed"}
    assert [(t.params, words[t.state.name], t.intermediate_values) for t in shown] == [
        (t.configuration, t.status, t.reports) for t in found.trials
    ]
    assert {t.status for t in found.trials} >= {"done", "stopped"}


def test_a_sampler_learns_from_what_others_wrote(tmp_path: Path) -> None:
    where = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "log")))
    others = optuna.create_study(study_name="objective", storage=where)
    others.optimize(lambda trial: (trial.suggest_float("x", 0, 1) - 0.3) ** 2, n_trials=5)
    proposals = OptunaProposals(TPESampler(seed=0), Space({"x": Float(0, 1)}), True)
    Storage(where, "objective", "tuning", proposals.space, True).teach(proposals)
    assert [t.params for t in proposals.study.trials] == [t.params for t in others.trials]
    narrow = OptunaProposals(TPESampler(seed=0), Space({"x": Float(2, 3)}), True)
    Storage(where, "objective", "tuning", narrow.space, True).teach(narrow)
    assert narrow.study.trials == []
