"""The watcher that `paceline train` starts around a run with workers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.concurrency.watcher import files
from paceline.concurrency.watcher.around import run_of_this_process, watched_run
from paceline.concurrency.watcher.files import Share
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.ranks import find_divergence
from paceline.concurrency.watcher.report import Span, report_divergence
from paceline.concurrency.watcher.samples import Counters, Frame, Pace, Process, Snapshot, Thread, ThreadWait
from paceline.runtime.runs.live import FILE as LIVE
from paceline.runtime.runs.live import LiveRecord, Phase, ProcessRecord, WorkerLive, WorkerStatus
from paceline.runtime.runs.schema import to_dict

# --- Watchers of several machines meet in a folder and see all ranks; what one has left counts no longer --------------


def rank(number: int, line: int, function: str) -> Process:
    stack = (Frame("/site-packages/torch/distributed/distributed_c10d.py", 9, function), Frame("/a.py", line, "main"))
    pid = 100 + number
    waits = (Thread(pid, ThreadWait("clock")),)
    return Process(pid, 1, "a.py", waits, rank=number, world_size=3, stacks=(stack,))


class Machine:
    """A machine with some ranks, and its watcher."""

    def __init__(self, name: str, folder: Path, *ranks: Process) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: name)
            self.share = Share(folder)
        self.snapshot, self.history = Snapshot(6.0, ranks), History()
        for at in (0.0, 6.0):
            self.history.add(Counters(at, {each.pid: {each.pid: Pace(0, 0, 0)} for each in ranks}, {}))
            self.history.observe(Snapshot(at, ranks))

    def merged(self) -> Snapshot:
        snapshot = self.share.merge(self.snapshot, self.history)
        self.history.observe(snapshot)
        return snapshot


def test_a_rank_of_another_machine_is_named_as_the_cause(tmp_path: Path) -> None:
    first = Machine("first", tmp_path, rank(0, 5, "all_reduce"), rank(1, 5, "all_reduce"))
    second = Machine("second", tmp_path, rank(2, 9, "barrier"))
    assert find_divergence(first.merged(), first.history) is None  # the second has written nothing yet
    for machine, told_on in ((second, "first"), (first, "")):
        found = find_divergence(machine.merged(), machine.history)
        assert found is not None
        assert [each.rank for each in found.cause] == [2]
        assert [each.rank for each in found.victims] == [0, 1]
        text = report_divergence(found, 0.9, Span(0.0, 6.0)).text()
        assert ("the watcher on first" in text) == bool(told_on)
    assert "rank 2, pid 102 on second (a.py)  is in barrier at /a.py:9" in text


def test_what_a_watcher_has_left_or_not_renewed_counts_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Machine("first", tmp_path, rank(0, 5, "x")), Machine("second", tmp_path, rank(2, 9, "barrier"))
    second.merged()
    assert len(first.merged().processes) == 2
    monkeypatch.setattr(files, "FRESH", -1.0)
    assert len(first.merged().processes) == 1
    monkeypatch.undo()
    assert len(first.merged().processes) == 2
    second.share.close()
    assert len(first.merged().processes) == 1


def test_a_file_that_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    first = Machine("first", tmp_path, rank(0, 5, "x"))
    (tmp_path / "other-1.json").write_text('{"host": "other", "ranks": [')
    assert first.merged() == first.snapshot


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
