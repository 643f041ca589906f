"""The space that a function of a trial suggests by itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import paceline
from paceline.errors import PacelineDeprecationWarning, TuningError
from paceline.interfaces.cli import app, register
from paceline.planning.tuner.trial import Trial
from paceline.planning.tuner.varied import MOST, suggested_space

# --- Functions with a parameter for each name of the space ------------------------------------------------------------

NAMED_X = torch.linspace(-1, 1, 40)[:, None]


def named_make_job(width: int, lr: float = 0.1) -> paceline.Job:
    return paceline.Job(
        model=lambda: nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1)),
        data=(NAMED_X, NAMED_X**2),
        test=(NAMED_X, NAMED_X**2),
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=lr),
        batch_size=10,
        epochs=1,
    )


def any_names(**configuration: Any) -> paceline.Job:
    return named_make_job(**configuration)


@pytest.mark.parametrize("make", [named_make_job, any_names])
def test_a_function_is_given_the_configuration_by_name(make: Any, tmp_path: Path) -> None:
    space = {"width": [2, 3], "lr": [0.1, 0.2]}
    found = paceline.tune(make, space, "grid", executor="here", folder=tmp_path)
    assert len(found.trials) == 4
    assert {trial.status for trial in found.trials} == {"done"}
    assert found.best is not None
    assert found.best_job.optimizer.keywords == {"lr": found.best.configuration["lr"]}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"width": [2, 3], "lrr": [0.1]}, "no parameter for the space's 'lrr'; did you mean 'lr'"),
        ({"lr": [0.1]}, "needs 'width', which the space does not have"),
    ],
)
def test_names_that_do_not_fit_are_refused(space: dict[str, Any], said: str) -> None:
    with pytest.raises(TuningError, match=said):
        paceline.tune(named_make_job, space, "grid", executor="here", folder=None)


def test_old_names_of_arguments_keep_working() -> None:
    with pytest.warns(PacelineDeprecationWarning, match="n_trials"):
        found = paceline.tune(
            named_make_job, {"width": paceline.Int(1, 9)}, "random", budget=2, executor="here", folder=None
        )  # type: ignore[call-arg]
    assert len(found.trials) == 2


X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2


def by_layers(trial: Trial) -> None:
    """Conditions within conditions, under one value and under several."""
    kind = trial.suggest_categorical("kind", ["mlp", "cnn", "rnn"])
    trial.suggest_float("lr", 1e-4, 1.0, log=True)
    if kind == "cnn":
        if trial.suggest_categorical("pool", [True, False]):
            trial.suggest_int("size", 2, 4)
    else:
        trial.suggest_int("width", 8, 64, log=True)
    if kind == "rnn":
        trial.suggest_float("dropout", 0.0, 0.5)


def test_conditions_are_found_by_varying_each_choice() -> None:
    space = suggested_space(by_layers)
    assert {name: dict(parameter.when) for name, parameter in space.parameters.items()} == {
        "kind": {},
        "lr": {},
        "width": {"kind": ["mlp", "rnn"]},
        "pool": {"kind": "cnn"},
        "dropout": {"kind": "rnn"},
        "size": {"kind": "cnn", "pool": True},
    }
    assert space.parameters["lr"] == paceline.Float(1e-4, 1.0, log=True)


def test_a_configuration_of_the_space_has_all_that_is_asked_for() -> None:
    space = suggested_space(by_layers)
    draws = torch.rand(200, len(space.parameters), generator=torch.Generator().manual_seed(0)).tolist()
    for row in draws:
        found = space.configuration(row)
        assert found is not None
        trial = Trial(0, found, 0, 1)
        by_layers(trial)
        assert trial.suggested == {}


def test_a_range_that_changes_is_drawn_by_the_function() -> None:
    def make(trial: Trial) -> None:
        trial.suggest_int("units", 1, 4 if trial.suggest_categorical("deep", [True, False]) else 8)

    assert list(suggested_space(make).parameters) == ["deep"]


def test_what_fails_under_one_value_counts_under_the_others() -> None:
    def make(trial: Trial) -> None:
        if trial.suggest_categorical("way", ["good", "bad"]) == "bad":
            raise RuntimeError("not this one")
        trial.suggest_float("lr", 0.0, 1.0)

    assert list(suggested_space(make).parameters) == ["way", "lr"]


def test_too_many_choices_are_refused() -> None:
    with pytest.raises(TuningError, match="give space= instead"):
        suggested_space(lambda trial: trial.suggest_categorical("one", list(range(MOST + 2))))


def make_job(trial: Trial) -> paceline.Job:
    """What the searches below tune."""
    width = trial.suggest_categorical("width", [4, 8])
    return paceline.Job(
        lambda: nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2)),
        (X, Y),
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=trial.suggest_float("lr", 0.1, 1.0)),
        batch_size=20,
    )


def test_a_grid_of_what_is_suggested() -> None:
    found = paceline.tune(make_job, search="grid", executor="processes", workers=1, folder=None)
    assert len({tuple(trial.configuration.values()) for trial in found.trials}) == 2 * 5


JOB = """
from functools import partial
import torch
from torch import nn
import paceline
X, Y = torch.randn(60, 4), torch.arange(60) % 2
def job(trial):
    lr = {lr}
    return paceline.Job(lambda: nn.Linear(4, 2), (X, Y), nn.CrossEntropyLoss(),
                        optimizer=partial(torch.optim.SGD, lr=lr), batch_size=20)
"""


@pytest.mark.parametrize(
    ("lr", "code", "said"),
    [
        ('trial.suggest_float("lr", 0.1, 1.0)', 0, "lr"),
        ("0.1", 2, "has nothing to vary: give --space FILE"),
        ('trial["lr"]', 2, "has nothing to vary"),
    ],
)
def test_the_command_needs_no_space(
    lr: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB.format(lr=lr))
    register()
    found: Any = CliRunner().invoke(app, ["tune", "job.py", "--search", "random", "--n-trials", "3", "--workers", "1"])
    assert found.exit_code == (0 if code == 0 else 1), found.output
    assert said in (found.output if code == 0 else str(found.exception))
