"""Numbers of NumPy are taken wherever Python's are; what is no whole number is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paceline
from paceline.errors import UsageError
from paceline.errors.arguments import plain
from paceline.planning.tuner.space import Space
from tests.each import each

NUMBERS = [np.int64(3), np.int32(3), np.uint8(3)]


def fields() -> dict[str, Any]:
    data = torch.ones(12, 4), torch.zeros(12, dtype=torch.long)
    sgd = partial(torch.optim.SGD, lr=0.1)
    return {
        "model": lambda: nn.Linear(4, 2),
        "data": data,
        "test": data,
        "loss": nn.CrossEntropyLoss(),
        "optimizer": sgd,
    }


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: type(n).__name__)
def test_whole_numbers_of_numpy_become_pythons(number: Any) -> None:
    job = paceline.Job(**fields(), batch_size=number, epochs=number, seed=number, evaluate_every=number)
    assert [type(each) for each in (job.batch_size, job.epochs, job.seed, job.evaluate_every)] == [int] * 4
    assert paceline.Ring(workers=number) == paceline.Ring(workers=3) == paceline.Plan.parse("ring", number)
    assert str(paceline.Ssp(bound=number)) == "ssp:bound=3"
    assert paceline.EarlyStopping(patience=number).patience == 3
    space = Space({"width": paceline.Int(number, np.int64(8)), "depth": paceline.Choice([number, np.float32(0.5)])})
    assert json.dumps([space.describe(), space.configuration([0.0, 0.0])])


def test_a_run_keeps_them_as_numbers(tmp_path: Path) -> None:
    job = paceline.Job(**fields(), batch_size=4, gradient_clip_norm=np.float32(1.0))
    run = paceline.train(job, "ring", workers=np.int64(2), max_updates=np.int64(3), engine="virtual", folder=tmp_path)
    assert run.path is not None
    assert json.loads((run.path / "run.json").read_text())["summary"]["updates"] == 3


@each("value", [True, np.bool_(True), 2.0, np.float64(2), "2", 0, np.int64(0)])
@each(
    "use",
    [
        lambda value: paceline.Job(**fields(), batch_size=value),
        lambda value: paceline.Ring(workers=value),
        lambda value: paceline.train("digits", "ring", workers=value),
        lambda value: paceline.compare("digits", ["ring"], workers=value),
        lambda value: paceline.tune(paceline.Job(**fields()), n_trials=value),
    ],
)
def test_what_is_no_whole_number_is_refused(use: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(UsageError, match=r"is not a whole number|give a whole number"):
        use(value)


def test_other_values_stay_as_they_are() -> None:
    assert [plain(each) for each in (None, "a", True, 2, 0.5)] == [None, "a", True, 2, 0.5]
