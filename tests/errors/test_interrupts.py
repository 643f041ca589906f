"""Ctrl-C, as a terminal sends it: to everybody. Once: a checkpoint, and a clean end; twice: at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paceline.errors import RunStopped
from tests import scripts
from tests.errors.cases import HEAD
from tests.scripts import finish, typed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(HEAD + "job = job.with_(epochs=10**6)\n")
    (tmp_path / "short.py").write_text(HEAD)
    return tmp_path


def start(folder: Path, plan: str) -> subprocess.Popen[str]:
    """A training that goes on for hours, once it is on its way."""
    command = [sys.executable, "-m", "paceline", "train", "job.py", "-p", plan, "-w", "2"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 300
    while not any(file.stat().st_size > 5_000 for file in folder.glob("runs/*/trace.arrow")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def ended(process: subprocess.Popen[str], family: list[psutil.Process]) -> str:
    try:
        said = process.communicate(timeout=300)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[1]
    _, left = psutil.wait_procs(family, timeout=60)
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]
    assert process.returncode == 130, said
    return said


@pytest.mark.parametrize("plan", ["downpour", pytest.param("ring", marks=pytest.mark.soak)])
def test_once_a_clean_end_that_can_go_on(plan: str, folder: Path) -> None:
    process = start(folder, plan)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    said = ended(process, family)
    assert re.search(
        r"stopped after [\d,]+ of [\d,]+ updates, with train loss [\d.]+; a checkpoint is written", said
    ), said
    go_on = re.search(r"resume  paceline train --resume (\S+)", said)
    assert go_on, said
    (look,) = finish([typed(folder, "report", go_on[1])])
    assert look.code == 0, look.err
    assert (folder / "report.html").exists() or list(folder.glob("runs/*/report.html"))


def test_the_commands_that_are_named_quote_the_folder() -> None:
    said = str(RunStopped(signal.SIGINT, 10, 100, 0.5, "my runs/1"))
    assert "paceline train --resume 'my runs/1'" in said
    assert "paceline report 'my runs/1'" in said


def test_twice_at_once(folder: Path) -> None:
    process = start(folder, "ring")
    family = psutil.Process(process.pid).children(recursive=True)
    worker = next(each for each in family if each.ppid() != process.pid)  # a child of the forkserver
    worker.suspend()  # so that no checkpoint can be had
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr
    while "Ctrl-C again stops at once" not in (line := process.stderr.readline()):
        assert line, "it ended at the first Ctrl-C"
    os.killpg(process.pid, signal.SIGINT)
    said = ended(process, family)
    assert "interrupted; every worker was stopped" in said


def test_an_interrupt_that_was_lost_is_raised_again(folder: Path) -> None:
    (folder / "lost.py").write_text(
        """
import os, signal, sys
sys.path.insert(0, ".")
from job import job
from paceline import train

class Destroyed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)  # Python reports what is raised here, and goes on

class TwoInterrupts:
    def on_update_end(self, training, report):
        if report.updates and not report.stopping:
            os.kill(os.getpid(), signal.SIGINT)
            Destroyed()

if __name__ == "__main__":
    try:
        train(job, "ring", workers=2, callbacks=[TwoInterrupts()])
    except KeyboardInterrupt:
        print("raised")
"""
    )
    (done,) = finish([scripts.start(folder / "lost.py")])
    assert "Exception ignored" in done.err, done.err
    assert done.out == "raised\n", done.err
