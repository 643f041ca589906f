"""What ends a run that was asked to end: whatever happens after the signal, it was stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import RunFailed, RunFolderError, RunStopped
from paceline.runtime.engines.checkpoint_manager import CheckpointManager
from paceline.runtime.runs.record import CheckpointInterval


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    setup: Any = SimpleNamespace(agenda=SimpleNamespace(updates=100))
    request: Any = SimpleNamespace(start=None, run=tmp_path, interval=CheckpointInterval(0, 0.0))
    made = CheckpointManager(setup, request)
    yield made
    made.close()


def fail(manager: CheckpointManager, before: Callable[[], None], error: Exception) -> None:
    """Fail before the training, after `before`."""
    observer: Any = SimpleNamespace(writer=None)
    with manager.listening(observer):
        before()
        raise error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("error", [RunFailed("rank 1 is gone\nmore"), RunFolderError("no room"), None])
def test_a_failure_after_a_signal_is_a_stop(
    number: signal.Signals, error: Exception | None, manager: CheckpointManager
) -> None:
    failed = error or RunFailed("rank 1 is gone")
    elsewhere = error is None  # the signal was sent to another node
    send = partial(manager.signals.take_of_another, number) if elsewhere else partial(os.kill, os.getpid(), number)
    with pytest.raises(RunStopped) as stopped:
        fail(manager, send, failed)
    assert stopped.value.exit_code == 128 + number
    assert stopped.value.__cause__ is failed
    why = str(failed).splitlines()[0]
    assert f"stopped before a checkpoint could be written: {why}; it has no checkpoint yet\n" in str(stopped.value)


@pytest.mark.parametrize("how", ["no signal", "a checkpoint at SIGUSR1", "a callback"])
def test_a_failure_without_a_signal_that_ends_the_run_stays_one(how: str, manager: CheckpointManager) -> None:
    before = {
        "a checkpoint at SIGUSR1": lambda: os.kill(os.getpid(), signal.SIGUSR1),
        "a callback": manager.signals.stop,
    }
    with pytest.raises(RunFailed, match="rank 1 is gone"):
        fail(manager, before.get(how, lambda: None), RunFailed("rank 1 is gone"))


def test_a_worker_that_dies_after_sigterm_is_no_failure_of_the_run(tmp_path: Path) -> None:
    def end(state: pl.Progress) -> None:
        if not ended and state.updates:
            ended.append(os.kill(os.getpid(), signal.SIGTERM))
            (worker, *_) = json.loads(next(tmp_path.glob("*/live.json")).read_text())["workers"]
            psutil.Process(worker["process"]["pid"]).kill()

    ended: list[None] = []
    data = torch.randn(64, 4), torch.randn(64, 1)
    job = pl.Job(
        model=partial(nn.Linear, 4, 1),
        data=data,
        loss=nn.functional.mse_loss,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=2,
        epochs=10**5,
    )
    with pytest.raises(RunStopped) as stopped:
        pl.train(job, "ring", 2, folder=tmp_path, checkpoint_every=0, progress=end)
    assert stopped.value.exit_code == 143
    (record,) = tmp_path.glob("*/run.json")
    assert json.loads(record.read_text())["status"] == "stopped"
