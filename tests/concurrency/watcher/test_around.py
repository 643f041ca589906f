"""The watcher that `paceline train` starts around a run with workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.concurrency.watcher.around import run_of_this_process, watched_run
from paceline.runtime.runs.live import FILE as LIVE
from paceline.runtime.runs.live import LiveRecord, Phase, ProcessRecord, WorkerLive, WorkerStatus
from paceline.runtime.runs.schema import to_dict

JOB = """
import threading
import torch, paceline as pl
from torch.nn import functional as F
calls = []
def loss(output, target):
    calls.append(1)
    if len(calls) == 200:
        lock = threading.Lock()
        with lock, lock:  # line 10
            pass
    return F.cross_entropy(output, target)
data = torch.randn(512, 12), torch.randint(5, (512,))
job = pl.Job(lambda: torch.nn.Linear(12, 5), data, loss, optimizer=lambda p: torch.optim.SGD(p, 0.1), epochs=10**6)
"""


def live(run: Path, process: ProcessRecord, workers: int) -> None:
    run.mkdir()
    told = tuple(WorkerLive(number, process, WorkerStatus.TRAINING, 3) for number in range(workers))
    record = LiveRecord(Phase.TRAINING, 0.0, process, 3, 10, told)
    (run / LIVE).write_text(json.dumps(to_dict(record)))


def test_only_a_run_of_this_process_with_workers_is_watched(tmp_path: Path) -> None:
    this = ProcessRecord.of(os.getpid())
    assert run_of_this_process(tmp_path / "none", 0.0) is None
    live(tmp_path / "other", ProcessRecord.of(1), workers=2)
    live(tmp_path / "alone", this, workers=0)
    (tmp_path / "ended").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / LIVE).write_text("{")
    assert run_of_this_process(tmp_path, 0.0) is None
    live(tmp_path / "mine", this, workers=2)
    assert run_of_this_process(tmp_path, 0.0) == tmp_path / "mine"


def test_a_short_run_starts_no_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a watcher was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with watched_run(tmp_path):
        pass


@pytest.mark.soak
def test_a_worker_that_waits_for_a_lock_for_ever_is_named_while_the_run_hangs(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "paceline", "train", "job.py", "--plan", "ring", "--workers", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as train:
        assert train.stderr
        try:
            block = next(line for line in train.stderr if line.startswith("HUNG since"))
            cause = next(line for line in train.stderr if "=> cause:" in line)
        finally:
            train.terminate()
            train.communicate()
    assert "deadlocked" in block
    assert "worker " in cause
    (found,) = (tmp_path / "runs").glob("*/hang.txt")
    assert "job.py:10 in loss" in found.read_text()
