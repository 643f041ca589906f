"""The user's own source files are recorded with a run; a replay names those that have changed before it begins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline as pl
from paceline.errors import JobWarning, ReplayDiverged
from paceline.runtime.engines.job_file import own_files
from paceline.runtime.runs.record import read_record
from paceline.training.jobs.loading import load_job

NET = """
from torch import nn
SIZE = 4
def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
"""
LOSS = """
from torch.nn.functional import cross_entropy
def loss(output, target):
    return cross_entropy(output, target)
"""
JOB = """
import torch
import loss_of_mine, net_of_mine
import paceline
x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
job = paceline.Job(
    net_of_mine.net, (x, (x[:, 0] > 0).long()), loss_of_mine.loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    batch_size=10, device="cpu",
)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A recorded run, in a process that has forgotten the modules of the job again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, text in (("net_of_mine.py", NET), ("loss_of_mine.py", LOSS), ("job.py", JOB)):
        (tmp_path / name).write_text(text)
    folder = pl.train(load_job(str(tmp_path / "job.py")), folder=tmp_path / "runs", checkpoint_every=2).path
    assert folder is not None
    _forget()
    yield folder
    _forget()


def _forget() -> None:
    for name in ("net_of_mine", "loss_of_mine"):
        sys.modules.pop(name, None)


def test_what_the_job_imports_is_recorded_and_nothing_installed(run: Path, tmp_path: Path) -> None:
    files = read_record(run).files
    assert {f"{tmp_path}/{name}" for name in ("net_of_mine.py", "loss_of_mine.py", "job.py")} <= files.keys()
    assert not [name for name in files if "site-packages" in name or "/paceline/runtime/engines/" in name]
    assert all(len(each) == 64 for each in own_files().values())


def test_a_replay_names_what_has_changed_before_it_diverges(run: Path, tmp_path: Path) -> None:
    """It blamed random numbers."""
    (tmp_path / "loss_of_mine.py").write_text(LOSS.replace("(output, target)\n", "(2 * output, target)\n"))
    (tmp_path / "job.py").write_text(JOB + "# pickled by value: no matter\n")
    named = rf"^{tmp_path}/loss_of_mine.py has changed since the run was recorded"
    with pytest.warns(JobWarning, match=named), pytest.raises(ReplayDiverged, match=r"loss_of_mine.py has changed"):
        pl.replay(str(run))


def test_a_replay_of_the_same_files_says_nothing(run: Path) -> None:
    assert pl.replay(str(run)).matches


@pytest.mark.parametrize("with_job", [True, False])
def test_a_resumed_run_names_what_has_changed(with_job: bool, run: Path, tmp_path: Path) -> None:
    (tmp_path / "net_of_mine.py").write_text(NET.replace("SIZE = 4", "SIZE = 5"))
    job = load_job(str(tmp_path / "job.py")) if with_job else None
    with pytest.warns(JobWarning, match=r"net_of_mine.py has changed"):
        longer = pl.train(job, resume=run, epochs=2)
    assert longer.record.job.epochs == 2
    assert longer.record.files == read_record(run).files
    with pytest.warns(JobWarning, match=r"net_of_mine.py has changed"):
        pl.replay(str(run))
