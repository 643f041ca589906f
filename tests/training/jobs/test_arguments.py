"""Every process that loads a user's file has the command line of that file's program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import paceline as pl
from paceline.errors import JobError
from paceline.runtime.runs.record import read_record
from paceline.training.gradients.pickling import pack_program, unpack_program
from paceline.training.jobs.loading import load_job
from tests.scripts import finish, typed

PARSES = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=4)
args = parser.parse_args()
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, args.width), nn.Tanh(), nn.Linear(args.width, 2))
    def forward(self, x):
        assert sys.argv[0].endswith("job.py"), sys.argv
        return super().forward(x)
"""
JOB = """
import torch
import beside_that_parses
import paceline
x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
job = paceline.Job(
    beside_that_parses.Net, (x, (x[:, 0] > 0).long()), torch.nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=10, device="cpu",
)
"""


def _paceline(*words: str, folder: Path) -> None:
    (done,) = finish([typed(folder, *words)])
    assert done.code == 0, done.err


def test_a_file_beside_the_job_parses_the_arguments_of_the_job(tmp_path: Path) -> None:
    """In the workers of a run, its replay, and where it is resumed; before, each had those of Paceline."""
    (tmp_path / "beside_that_parses.py").write_text(PARSES)
    (tmp_path / "job.py").write_text(JOB)
    _paceline("train", "job.py", "--plan", "ring", "--workers", "2", "--job-args", "--width 7", "-q", folder=tmp_path)
    (path,) = (tmp_path / "runs").iterdir()
    assert read_record(path).job.arguments == ("--width", "7")
    assert read_record(path).job.parameters == 3 * 7 + 7 + 7 * 2 + 2
    _paceline("replay", str(path), folder=tmp_path)
    _paceline("train", "job.py", "--resume", str(path), "--epochs", "2", "-q", folder=tmp_path)


def test_the_callers_own_arguments_are_back_after_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text(
        JOB.replace("import beside_that_parses\n", "").replace(
            "beside_that_parses.Net", "lambda: torch.nn.Linear(3, 2)"
        )
    )
    monkeypatch.setattr(sys, "argv", ["mine.py", "--own"])
    run = pl.train(load_job(str(tmp_path / "job.py"), job_args="--width 7"), folder=tmp_path / "runs")
    monkeypatch.setattr(sys, "argv", ["mine.py", "--own"])
    assert run.path is not None
    assert pl.replay(str(run.path)).matches
    assert sys.argv == ["mine.py", "--own"]


@pytest.mark.parametrize("inside", [True, False])
def test_what_argparse_refuses_is_named_with_the_arguments(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inside`: the job file itself parses; otherwise what it imports."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    needs = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('data')\nparser.parse_args()\n"
    (tmp_path / "needs_arguments.py").write_text(needs)
    (tmp_path / "job.py").write_text(needs if inside else "import needs_arguments\n")
    file = tmp_path / "job.py"
    with pytest.raises(JobError, match=r"job.py ends the program .* with sys.argv == \['.*job.py', '-x'\].*--job-args"):
        load_job(str(file), job_args="-x")


def test_arguments_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    with pytest.raises(JobError, match="No closing quotation; quote it"):
        load_job(str(tmp_path / "job.py"), job_args="'a")
    with pytest.raises(JobError, match="digits is a built-in job, which has no arguments"):
        load_job("digits", job_args="-x")


def test_a_program_on_another_machine_has_the_arguments_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent or a task of Ray is a program of Ray's."""
    monkeypatch.setattr(sys, "argv", ["job.py", "--width", "7"])
    packed = pack_program("the job")
    monkeypatch.setattr(sys, "argv", ["default_worker.py", "--ray"])
    assert (unpack_program(packed), sys.argv) == ("the job", ["job.py", "--width", "7"])
