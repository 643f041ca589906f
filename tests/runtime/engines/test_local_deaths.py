"""Killing real processes. Each death is timed by the progress of the run, not by sleeping."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import DeathWarning, RunFailed, WorkerDied, WorkerFailed, WorkerSilent
from paceline.interfaces.testing.conformance import no_update_lost, replays, staleness_identity
from paceline.interfaces.testing.killing import DiesInMidUpdate, kill_one, worker_processes
from paceline.runtime.engines.local import worker_pool
from paceline.runtime.runs.progress import Progress

SOAK = pytest.mark.soak
X = torch.randn(400, 20, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (400,), generator=torch.Generator().manual_seed(1))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 4))


def job(**changes: Any) -> pl.Job:
    given: dict[str, Any] = {
        "model": net,
        "data": (X, Y),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        "batch_size": 10,
        "epochs": 2,
    }
    return pl.Job(**{**given, **changes})


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("downpour", marks=SOAK),
        "downpour:shards=3",
        "downpour:codec=topk",
        "backup",
        pytest.param("backup:backups=0", marks=SOAK),
        "gossip:mode=asynchronous",
    ],
)
def test_the_others_survive_a_death_in_mid_update_with_the_lock_held(tmp_path: Path, plan: str) -> None:
    when = tmp_path / "die"
    when.touch()
    made = job(optimizer=partial(DiesInMidUpdate, lr=0.05, momentum=0.9, when=str(when), spared=7), epochs=4)
    run = pl.train(made, plan, workers=3, folder=None)
    assert len(run.summary()["deaths"]) == 1
    assert all(p.abs().max() < 1e3 for p in run.model.parameters()), "the torn step was not taken back"
    no_update_lost(run)
    staleness_identity(run)
    replays(run)


class Held(nn.Sequential):
    """A model whose forward passes, after ten in a worker, wait for as long as a file exists."""

    passes = 0

    def __init__(self, gate: str, parent: int) -> None:
        super().__init__(*net())
        self.gate, self.parent = gate, parent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.parent:
            Held.passes += 1
            while Held.passes > 10 and os.path.exists(self.gate):
                time.sleep(0.001)
        return super().forward(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("plan", ["downpour", "backup", "gossip:mode=asynchronous"])
def test_the_last_one_goes_on_when_all_others_are_killed(tmp_path: Path, plan: str) -> None:
    gate = tmp_path / "gate"
    gate.touch()

    victims: list[psutil.Process] = []

    def kill_two(state: Progress) -> None:
        if not victims:
            victims.extend(worker_processes())
        if len(state.dead) == 2:
            gate.unlink(missing_ok=True)
        elif state.updates > 5:
            victims[2 * len(state.dead)].kill()

    run = pl.train(job(model=partial(Held, str(gate), os.getpid())), plan, 3, folder=None, progress=kill_two)
    assert len(run.summary()["deaths"]) == 2
    no_update_lost(run)
    staleness_identity(run)


@pytest.mark.filterwarnings("ignore:plan sandblaster:paceline.errors.JobWarning")
@pytest.mark.parametrize(
    "plan",
    ["ring", "sandblaster", "one_f_one_b", "tensor", *(pytest.param(p, marks=SOAK) for p in ("pipedream", "zero"))],
)
def test_a_plan_that_keeps_step_ends_at_once_and_names_the_dead(plan: str) -> None:
    killed_at: list[float] = []

    def kill(state: Progress) -> None:
        if state.updates > 10 and not killed_at:
            killed_at.append(time.monotonic())
            worker_processes()[1].kill()

    with pytest.raises(WorkerDied, match=r"worker 1 died \(SIGKILL\)\n  when     in update \d+") as caught:
        pl.train(job(epochs=10**4), plan, workers=3, folder=None, progress=kill)
    assert caught.value.worker == 1
    assert time.monotonic() - killed_at[0] < 60, "it was the deadline that ended it"


def test_a_run_ends_well_although_its_workers_are_slow_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine so busy that a process which was killed gets no core for seconds."""
    monkeypatch.setattr(worker_pool, "GONE", 0.0)
    run = pl.train(job(), "downpour", workers=2, folder=None, max_updates=4)
    assert run.summary()["updates"] == 4


def test_every_worker_dead_is_said() -> None:
    def kill_all(state: Progress) -> None:
        for process in worker_processes():
            with suppress(psutil.NoSuchProcess):  # it ended when it saw that the others had
                process.kill()

    with pytest.raises(RunFailed, match="every worker died"):
        pl.train(job(epochs=10**4), "downpour", workers=2, folder=None, progress=kill_all)


@pytest.mark.parametrize("plan", ["ring", "ampnet"])
def test_a_stopped_worker_is_named_by_the_one_who_waits(plan: str) -> None:
    """Under ampnet a worker waits for any other's message, and said only that."""
    stopped: list[psutil.Process] = []

    def stop(state: Progress) -> None:
        if state.updates > 5 and not stopped:
            stopped.append(worker_processes()[0])
            stopped[0].suspend()

    with pytest.raises(
        RunFailed, match=r"worker 0 did not come: worker 1 waited 3 s for it. Its process \d+ is stopped"
    ):
        pl.train(job(epochs=10**4), plan, workers=2, folder=None, progress=stop, timeout=3.0)


@pytest.mark.parametrize(
    "plan",
    [
        "downpour",
        pytest.param("hogwild", marks=SOAK),
        pytest.param("gossip:mode=asynchronous", marks=SOAK),
        "ssp:bound=0",
    ],
)
def test_a_worker_that_is_stopped_for_ever_is_named_and_the_others_finish(plan: str) -> None:
    """Nobody waits for it under these plans, so the run did not end, and nothing said why."""
    stopped: list[psutil.Process] = []

    def stop(state: Progress) -> None:
        if state.updates > 5 and not stopped:
            stopped.append(worker_processes()[0])
            stopped[0].suspend()

    with pytest.warns(DeathWarning, match=r"worker 0 was stopped for 1 s \(SIGSTOP; its process \d+\): it is ended"):
        run = pl.train(job(epochs=20), plan, workers=2, folder=None, progress=stop, timeout=1.0)
    assert run.record.summary is not None
    assert run.record.summary.deaths == (0,)
    if plan != "hogwild":  # which has no versions
        no_update_lost(run)


def test_a_worker_that_is_stopped_for_ever_ends_a_run_that_has_no_other() -> None:
    def stop(state: Progress) -> None:
        if state.updates > 5:
            worker_processes()[0].suspend()

    with pytest.raises(WorkerSilent, match=r"worker 0 was stopped for more than 1 s. Its process \d+ is stopped"):
        pl.train(job(epochs=10**4), "sequential", folder=None, progress=stop, timeout=1.0)


def test_an_exception_in_the_users_model_is_the_message() -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        if torch.get_num_threads() == 1 and (batch[1] == 9).any():
            raise ValueError("nine is not a class")
        return nn.functional.cross_entropy(model(batch[0]), batch[1] % 4)

    labels = Y.clone()
    labels[7] = 9
    made = job(data=(X, labels), loss=None, step=step, shuffle=False, batch_size=5)
    for plan in ("ring", "downpour"):
        told = (
            r"worker \d failed first: ValueError: nine is not a class\n  when     in update [01], with samples .*\b7\b"
        )
        with pytest.raises(WorkerFailed, match=told):
            pl.train(made.with_(batch_size=5), plan, workers=2, folder=None)


def test_the_folder_opens_after_a_crash(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied):
        pl.train(job(epochs=10**4), "ring", workers=2, folder=tmp_path, progress=kill_one(0.5, lambda n: 0))
    (folder,) = tmp_path.iterdir()
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "failed"
    assert "SIGKILL" in record["error"]
    assert "paceline train --resume" not in record["error"], "it keeps no checkpoints"
    from paceline.runtime.runs.trace import Trace

    assert len(Trace.open(folder / "trace.arrow")) > 10


@pytest.mark.parametrize("plan", ["ring", "downpour"])
def test_the_command_that_resumes_a_run_is_named_where_it_works(plan: str, tmp_path: Path) -> None:
    def kill_all(state: Progress) -> None:
        for process in worker_processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    with pytest.raises(RunFailed) as failed:
        pl.train(job(epochs=10**4), plan, workers=2, folder=tmp_path, progress=kill_all, checkpoint_every=0)
    (folder,) = tmp_path.iterdir()
    assert f"  paceline train --resume {folder}" in str(failed.value)
    assert f"paceline train --resume {folder}" in json.loads((folder / "run.json").read_text())["error"]


SCRIPT = """
import sys, torch
from functools import partial
from torch import nn
import paceline as pl
job = pl.Job(model=lambda: nn.Linear(50, 4), data=(torch.randn(1000, 50), torch.randint(4, (1000,))),
             loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=10,
             epochs=int(sys.argv[2]))
def tell(state):
    print(state.updates, flush=True)
pl.train(job, sys.argv[1], workers=2, folder=None, progress=tell)
"""


EPOCHS, UPDATES_PER_EPOCH = 20, 100
Family = list[psutil.Process]
BUSY = 60.0  # seconds that a busy machine may take for what an idle one does at once


@contextmanager
def _started(plan: str, tmp_path: Path, epochs: int, updates: int) -> Iterator[Family]:
    """The processes of the script after so many updates, its own first. None outlives the block."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), plan, str(epochs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
    )
    with process:  # closes its stream
        try:
            assert process.stdout
            while int(process.stdout.readline() or -1) < max(1, updates):
                assert process.poll() is None
            parent = psutil.Process(process.pid)
            yield [parent, *parent.children(recursive=True)]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _nothing_is_left(family: Family, seconds: float) -> None:
    """All end within so many seconds. Those in which one of them could run but had no core are not counted."""
    begun, before = time.monotonic(), _core_waits(family)
    waits = dict(before)
    while running := _core_waits(family):
        waits |= running
        assert time.monotonic() - begun - (sum(waits.values()) - sum(before.values())) < seconds, running
        time.sleep(0.01)


def _core_waits(family: Family) -> dict[int, float]:
    """Of each that has not ended, the seconds for which it has waited for a core since it began."""
    found = {}
    for each in family:
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            if each.status() != psutil.STATUS_ZOMBIE:  # dead; whether it is reaped is its parent's affair
                found[each.pid] = int(Path(f"/proc/{each.pid}/schedstat").read_text().split()[1]) / 1e9
    return found


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with _started("ring", tmp_path, 10**6, 1) as family:
        assert len(family) >= 4  # with the forkserver and two workers
        _interrupt(family, BUSY)


@pytest.mark.soak
@pytest.mark.parametrize(("tenth", "plan"), list(zip(range(10), ["ring", "downpour"] * 5, strict=True)))
def test_ctrl_c_at_any_tenth_of_a_run_ends_everything_within_two_seconds(plan: str, tenth: int, tmp_path: Path) -> None:
    with _started(plan, tmp_path, EPOCHS, EPOCHS * UPDATES_PER_EPOCH * tenth // 10) as family:
        _interrupt(family, 2.0)


def _interrupt(family: Family, seconds: float) -> None:
    os.killpg(family[0].pid, signal.SIGINT)  # as a terminal does: to every process
    _nothing_is_left(family, seconds)


@pytest.mark.parametrize(
    ("plan", "seconds"),
    [("downpour", BUSY), *(pytest.param(plan, 2.0, marks=SOAK) for plan in ("ring", "downpour"))],
)
def test_killing_the_parent_ends_everything(plan: str, seconds: float, tmp_path: Path) -> None:
    with _started(plan, tmp_path, 10**6, 1) as family:
        family[0].kill()
        _nothing_is_left(family, seconds)


def test_workers_whose_end_is_told_late_are_waited_for() -> None:
    """The forkserver, which tells how a worker has ended, may find no core for seconds on a busy machine."""
    stopped: list[threading.Timer] = []

    def stop(progress: Progress) -> None:
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        if progress.updates == 80 and not stopped:
            os.kill(server, signal.SIGSTOP)
            stopped.append(threading.Timer(4.0, os.kill, (server, signal.SIGCONT)))
            stopped[0].start()

    run = pl.train(job(), "ring", workers=2, folder=None, progress=stop)
    stopped[0].join()
    assert run.summary()["updates"] == 80
