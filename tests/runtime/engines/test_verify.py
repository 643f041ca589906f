"""`verify` names the first update, tensor and number at which two trainings differ, and says when they do not."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import paceline as pl
from paceline.interfaces.cli import app, register
from paceline.runtime.runs.record import read_record

GENERATOR = torch.Generator().manual_seed(1)
X, Y = torch.randn(60, 6, generator=GENERATOR), torch.randint(3, (60,), generator=GENERATOR)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 3))


def job(model: Any = net, **rest: Any) -> pl.Job:
    given = {"optimizer": partial(torch.optim.SGD, lr=0.1), "batch_size": 12, "epochs": 2, "seed": 1}
    return pl.Job(model=model, data=(X, Y), loss=nn.CrossEntropyLoss(), device="cpu", **{**given, **rest})


def trained(folder: Path, job: pl.Job, plan: str = "ring:workers=2", engine: str = "virtual") -> Path:
    run = pl.train(job, plan, engine=engine, folder=folder)
    assert run.path is not None
    return run.path


def spoiled(batch: Any) -> Any:
    """Double an input of one sample, of the second update of an epoch."""
    x, y = batch
    return torch.where(x == X[35, 2], 2 * x, x), y


def half_precision_layer() -> nn.Module:
    model = net()
    model[3].weight.data = model[3].weight.data.bfloat16().float()  # type: ignore[union-attr]
    return model


def test_two_runs_with_the_same_bits(tmp_path: Path) -> None:
    one = trained(tmp_path, job(), "ring:workers=2,canonical=4")
    other = trained(tmp_path, job(), "ring:workers=3,canonical=4")
    found = pl.verify(one, other)
    assert found.same
    assert found.updates == 10
    assert (found.update, found.first) == (None, None)
    assert found.settings["plan"] == ("ring:workers=2,canonical=4", "ring:workers=3,canonical=4")


@pytest.mark.parametrize(
    ("change", "update", "tensor", "setting"),
    [
        ({"seed": 2}, -1, "0.weight", "seed"),
        ({"optimizer": partial(torch.optim.SGD, lr=0.1, weight_decay=1e-3)}, 0, "0.weight", "optimizer"),
        ({"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.5)}, 1, "0.weight", "optimizer"),
        ({"precision": "bf16-mixed"}, 0, "0.weight", "precision"),
        ({"gradient_clip_norm": 1e-3}, 0, "0.weight", "gradient_clip_norm"),
        ({"batch_size": 20}, 0, "0.weight", "batch_size"),
        ({"model": half_precision_layer}, -1, "3.weight", "initial_sha256"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_the_first_difference_is_named(
    tmp_path: Path, change: dict[str, Any], update: int, tensor: str, setting: str
) -> None:
    found = pl.verify(trained(tmp_path, job()), trained(tmp_path, job(**change)))
    assert not found.same
    assert found.update == update
    assert found.first is not None
    assert found.first.tensor == tensor
    assert found.first.values[0] != found.first.values[1]
    assert setting in found.settings


def test_the_update_that_first_sees_another_sample_is_found(tmp_path: Path) -> None:
    found = pl.verify(trained(tmp_path, job(shuffle=False)), job(shuffle=False, batch_transform=spoiled))
    assert found.update == 2  # sample 35 of batches of 12
    assert found.first is not None
    assert found.first.tensor == "0.weight"


def test_a_job_is_compared_by_another_plan(tmp_path: Path) -> None:
    run = trained(tmp_path, job(), "tree:workers=3,canonical=4")
    assert pl.verify(run, job(), plan="sequential:canonical=4").same
    assert not pl.verify(run, job(), plan="sequential:canonical=3").same


def test_trainings_of_other_models_are_told(tmp_path: Path) -> None:
    found = pl.verify(trained(tmp_path, job()), job(lambda: nn.Sequential(nn.Linear(6, 3))))
    assert not found.same
    assert "they train other tensors: 3.bias, 3.weight" in found.notes[0]


def test_a_longer_training_agrees_as_far_as_the_other_goes(tmp_path: Path) -> None:
    found = pl.verify(trained(tmp_path, job()), trained(tmp_path, job(epochs=3)))
    assert not found.same
    assert (found.update, found.updates) == (None, 10)
    assert "10 updates and the other 15" in found.notes[0]


def test_a_run_whose_record_is_not_what_its_job_gives(tmp_path: Path) -> None:
    one, other = trained(tmp_path, job()), trained(tmp_path, job())
    record = read_record(other)
    wrong = (other / "run.json").read_text().replace(record.summary.parameters_sha256, "0" * 64)  # type: ignore[union-attr]
    (other / "run.json").write_text(wrong)
    found = pl.verify(one, other)
    assert not found.same
    assert "the second run was recorded with parameters 0000000000000000" in found.notes[0]


def test_the_command_says_it_by_its_exit_code(tmp_path: Path) -> None:
    register()
    one, other, third = (trained(tmp_path, job(seed=seed)) for seed in (1, 1, 2))
    same = CliRunner().invoke(app, ["verify", str(one), str(other)])
    assert same.exit_code == 0
    differs = CliRunner().invoke(app, ["verify", str(one), str(third), "--json"])
    assert differs.exit_code == 1
    told = json.loads(differs.stdout)
    assert (told["same"], told["update"], told["tensor"]) == (False, -1, "0.weight")
    assert told["settings"]["seed"] == [1, 2]
