"""live.json: what another program sees of a run that goes on, and of one that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

import paceline as pl
from paceline.errors import RunFolderError
from paceline.interfaces.testing.jobs import JOBS
from paceline.interfaces.testing.killing import worker_processes
from paceline.runtime.runs.live import (
    INTERVAL,
    Heartbeat,
    LiveRecord,
    Phase,
    ProcessRecord,
    WorkerLive,
    WorkerStatus,
    read_live,
)
from paceline.runtime.runs.progress import Progress
from paceline.runtime.runs.record import Status, read_record
from paceline.runtime.runs.schema import SCHEMA_VERSION

SCRIPT = """
import sys, pathlib
import paceline as pl
from paceline.runtime.runs import live
from paceline.interfaces.testing.jobs import JOBS
live.INTERVAL = 0.0  # write at every look, so that the state on disk is a moment old
def ready(report):
    if report.updates >= 30:
        pathlib.Path(sys.argv[2], "ready").touch()
job = JOBS["mlp"]().with_(epochs=10**6)
pl.train(job, sys.argv[1], workers=2, folder=pathlib.Path(sys.argv[2], "runs"), progress=ready)
"""


@pytest.mark.parametrize("plan", [pytest.param("ring", marks=pytest.mark.soak), "downpour"])
def test_a_killed_run_leaves_what_each_worker_was_at(plan: str, tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT, plan, str(tmp_path)])
    try:
        end = time.monotonic() + 300
        while not (tmp_path / "ready").exists():
            assert parent.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        (run,) = (tmp_path / "runs").iterdir()
        workers = psutil.Process(parent.pid).children(recursive=True)
        # The next state is whole, since the file is replaced; 30 updates are in it, since they were made before.
        before = read_live(run)
        while (state := read_live(run)) == before:
            time.sleep(0.01)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        psutil.wait_procs(workers, 10)
    state = read_live(run)
    assert state is not None
    assert state.phase == Phase.TRAINING
    assert state.process.pid == parent.pid
    assert not state.process.alive
    assert state.updates >= 30
    assert [worker.number for worker in state.workers] == [0, 1]
    for worker in state.workers:
        assert worker.process.pid in [process.pid for process in workers]
        assert worker.status in (WorkerStatus.TRAINING, WorkerStatus.WAITING)
        assert worker.update >= 0
        assert not worker.process.alive
    # Workers may go on between the two looks at their updates.
    assert max(worker.update for worker in state.workers) + 1 >= state.updates
    assert read_record(run).status == Status.RUNNING


def test_the_live_file_names_the_processes_and_goes_with_the_run(tmp_path: Path) -> None:
    seen: list[LiveRecord] = []

    def look(_: Progress) -> None:
        (run,) = tmp_path.iterdir()
        state = read_live(run)
        assert state is not None
        processes = {process.pid: process.create_time() for process in worker_processes()}
        assert {worker.process.pid for worker in state.workers} == set(processes)
        for worker in state.workers:
            assert worker.process.alive
            assert worker.process.started == pytest.approx(processes[worker.process.pid], abs=2)
        seen.append(state)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pl.train(JOBS["mlp"]().with_(epochs=10**6), "ring", workers=2, folder=tmp_path, progress=look)
    (state,) = seen
    assert state.process == ProcessRecord.of(os.getpid())
    assert state.phase == Phase.TRAINING
    (run,) = tmp_path.iterdir()
    assert read_live(run) is None
    assert read_record(run).status == Status.STOPPED


@pytest.mark.parametrize("engine", ["local", "virtual"])
def test_the_live_file_goes_with_a_run_that_is_done(engine: str, tmp_path: Path) -> None:
    phases: list[Phase] = []

    def metric(output: torch.Tensor, target: torch.Tensor) -> float:
        for folder in tmp_path.iterdir():  # there is none yet when the metric is tried before the training
            state = read_live(folder)
            assert state is not None
            phases.append(state.phase)
        return 0.0

    job = JOBS["mlp"]()
    job = job.with_(test=job.data, metrics={"seen": metric})
    run = pl.train(job, "ring", 2, engine=engine, folder=tmp_path)
    assert run.path is not None
    assert set(phases) == {Phase.EVALUATING}
    assert read_live(run.path) is None


def test_heartbeats_are_seldom_but_for_a_new_phase(tmp_path: Path) -> None:
    now, asked = [100.0], list[float]()

    def workers() -> list[WorkerLive]:
        asked.append(now[0])
        return [WorkerLive(0, ProcessRecord(1, 0.0), WorkerStatus.TRAINING, 7)]

    with Heartbeat(tmp_path, 50, clock=lambda: now[0]) as heartbeat:
        for step in range(100):
            now[0] = 100.0 + step * INTERVAL / 10
            heartbeat.beat(Phase.STARTING if step < 5 else Phase.TRAINING, step, workers)
        state = read_live(tmp_path)
    assert asked == [pytest.approx(100.0 + step * INTERVAL / 10) for step in range(5, 100, 10)]
    assert state is not None
    assert state.updates == 95
    assert state.workers[0].update == 7
    assert read_live(tmp_path) is None


def test_a_newer_live_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION + 5}))
    with pytest.raises(RunFolderError, match=r"live.json has schema version 8; this paceline reads up to 3"):
        read_live(tmp_path)


def test_a_pid_that_another_process_has_is_not_alive() -> None:
    this = ProcessRecord.of(os.getpid())
    assert this.alive
    assert not ProcessRecord(this.pid, this.started - 10).alive
