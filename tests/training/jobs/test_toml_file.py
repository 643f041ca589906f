"""Job files in TOML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from paceline.errors import JobError
from paceline.training.jobs.loading import load_job

JOB = """
from functools import partial
import paceline, torch
from torch import nn
job = paceline.Job(model=lambda: nn.Linear(3, 2), data=(torch.rand(40, 3), torch.zeros(40).long()),
    loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=10)
other = job.with_(epochs=7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(JOB)
    return tmp_path


def load(folder: Path, text: str) -> Any:
    (folder / "job.toml").write_text(text)
    return load_job(str(folder / "job.toml"))


def test_settings_change_the_job_that_the_file_starts_from(folder: Path) -> None:
    job = load(
        folder,
        '[job]\nfrom = "mine.py"\nepochs = 3\ngradient_clip_norm = 1\nprecision = "bf16-mixed"\nshuffle = false\n'
        '[job.optimizer]\nname = "AdamW"\nlr = 0.01\n[job.lr_scheduler]\nname = "StepLR"\nstep_size = 2\n',
    )
    assert (job.epochs, job.gradient_clip_norm, job.precision, job.shuffle) == (3, 1, "bf16-mixed", False)
    assert (job.name, job.batch_size) == ("job", 10)
    optimizer = job.make_optimizer(nn.Linear(2, 2), list(nn.Linear(2, 2).parameters()))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["lr"] == 0.01
    assert job.lr_scheduler(optimizer).step_size == 2


def test_it_may_start_from_another_name_a_built_in_job_or_another_file(folder: Path) -> None:
    assert load(folder, '[job]\nfrom = "mine.py:other"\n').epochs == 7
    assert load(folder, '[job]\nfrom = "digits"\nepochs = 2\n').epochs == 2
    (folder / "base.toml").write_text('[job]\nfrom = "mine.py"\nepochs = 5\nseed = 9\n')
    job = load(folder, '[job]\nfrom = "base.toml"\nepochs = 6\n')
    assert (job.epochs, job.seed) == (6, 9)


def test_a_run_of_it_is_replayed(folder: Path) -> None:
    job = load(folder, '[job]\nfrom = "mine.py"\n[job.optimizer]\nname = "Adam"\n')
    run = paceline.train(job, engine="virtual", folder=folder / "runs")
    assert paceline.replay(run).matches


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[job", "does not parse"),
        ("[jobs]\n", r"has a table \[jobs\]"),
        ("", r"has no table \[job\]"),
        ("[job]\nepochs = 3\n", "does not say which job it starts from"),
        ("[job]\nfrom = 'mine.py'\nepoch = 3\n", "did you mean 'epochs'"),
        ("[job]\nfrom = 'mine.py'\nepochs = 'three'\n", "epochs = 'three' is not of type int"),
        ("[job]\nfrom = 'mine.py'\nepochs = true\n", "epochs = True is not of type int"),
        ("[job]\nfrom = 'mine.py'\nepochs = 0\n", "epochs=0 is not a whole number"),
        ("[job]\nfrom = 'their.py'\n", "there is no file"),
        ("[job]\nfrom = 'mine.py'\noptimizer = 'SGD'\n", "optimizer is a table"),
        ("[job]\nfrom = 'mine.py'\n[job.optimizer]\nname = 'SDG'\n", "did you mean 'SGD'"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, text: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        load(folder, text)


def test_the_best_job_of_its_tuning_is_found_from_any_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "job.toml").write_text('[job]\nfrom = "mine.py"\n')
    monkeypatch.chdir(folder)
    found = paceline.tune("job.toml", {"lr": [0.1, 0.2]}, "grid", executor="here", folder=folder / "runs")
    monkeypatch.chdir(folder.parent)
    assert found.path is not None
    assert found.best is not None
    module = nn.Linear(3, 2)
    optimizer = load_job(str(found.path / "best.py")).make_optimizer(module, list(module.parameters()))
    assert optimizer.param_groups[0]["lr"] == found.best.configuration["lr"]
