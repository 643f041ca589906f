"""The job in a run's folder, read by a command that has not imported what the job file imports."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import paceline as pl
from paceline.training.jobs.loading import load_job, load_maker

BESIDE = "from torch import nn\nclass Net(nn.Linear):\n    pass\n"
JOB = """
import torch
import beside_the_job
import paceline
x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
job = paceline.Job(
    lambda: beside_the_job.Net(3, 2), (x, (x[:, 0] > 0).long()), torch.nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=10,
)
"""


@pytest.mark.parametrize("known", [True, False])
def test_modules_beside_the_job_file_are_found(known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`known`: whether the job came from its file, and not from a script in the folder where the command is given."""
    (tmp_path / "beside_the_job.py").write_text(BESIDE)
    (tmp_path / "job.py").write_text(JOB)
    paths = list(sys.path)
    monkeypatch.setattr(sys, "path", list(paths))
    job = load_job(str(tmp_path / "job.py"))
    run = pl.train(job if known else job.with_(origin=""), folder=tmp_path / "runs")
    del sys.modules["beside_the_job"]
    sys.path[:] = paths
    if not known:
        monkeypatch.chdir(tmp_path)
    assert run.path is not None
    assert pl.replay(str(run.path)).matches


def test_a_function_that_needs_no_arguments_makes_the_job(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from paceline.testing.jobs import JOBS\ndef job(name='mlp'):\n    return JOBS[name]()\n")
    assert callable(load_maker(str(file))), "each trial of a tuning makes a job"
    job = load_job(str(file))
    assert isinstance(job, pl.Job)
    assert isinstance(load_job(job.origin), pl.Job)
