"""Functions with a parameter for each name of the space."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from paceline.errors import PacelineDeprecationWarning, TuningError

X = torch.linspace(-1, 1, 40)[:, None]


def make_job(width: int, lr: float = 0.1) -> paceline.Job:
    return paceline.Job(
        model=lambda: nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1)),
        data=(X, X**2),
        test=(X, X**2),
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=lr),
        batch_size=10,
        epochs=1,
    )


def any_names(**configuration: Any) -> paceline.Job:
    return make_job(**configuration)


@pytest.mark.parametrize("make", [make_job, any_names])
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
        paceline.tune(make_job, space, "grid", executor="here", folder=None)


def test_old_names_of_arguments_keep_working() -> None:
    with pytest.warns(PacelineDeprecationWarning, match="n_trials"):
        found = paceline.tune(make_job, {"width": paceline.Int(1, 9)}, "random", budget=2, executor="here", folder=None)  # type: ignore[call-arg]
    assert len(found.trials) == 2
