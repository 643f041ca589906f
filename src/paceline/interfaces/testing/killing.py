"""Killing real workers: by an optimizer in the middle of a step, or from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from paceline.runtime.runs.progress import Progress, ProgressCallback


class DiesInMidUpdate(torch.optim.SGD):
    """SGD whose process is killed after it has changed half of the parameters, with the shard's lock held.

    `when` is a path: the first process to step while that file exists, after `spared` steps of its own, removes it
    and dies.
    """

    def __init__(self, params: Any, when: str, spared: int = 0, **rest: Any) -> None:
        super().__init__(params, **rest)
        self.when, self.spared = when, spared

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.spared:
            self.spared -= 1
            super().step(closure)
            return
        try:
            os.unlink(self.when)
        except FileNotFoundError:
            super().step(closure)
            return
        everything = [p for group in self.param_groups for p in group["params"]]
        with torch.no_grad():
            for parameter in everything[: max(1, len(everything) // 2)]:
                parameter.fill_(1e6)
        os.kill(os.getpid(), signal.SIGKILL)


def worker_processes() -> list[psutil.Process]:
    """Return the workers of the run that this process has started, in the order of their numbers."""
    workers = []
    for child in psutil.Process().children():
        if "forkserver" in " ".join(child.cmdline()):
            workers += child.children()
    return sorted(workers, key=lambda p: p.pid)


def kill_tree(root: psutil.Process) -> None:
    """Send SIGKILL to a process and all its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def kill_one(after: float, choose: Callable[[int], int], how: signal.Signals = signal.SIGKILL) -> ProgressCallback:
    """Return a progress callback that kills worker `choose(count)` after so many seconds of training."""
    done = False

    def progress(state: Progress) -> None:
        nonlocal done
        if not done and state.seconds >= after:
            done = True
            workers = worker_processes()
            if workers:
                workers[choose(len(workers))].send_signal(how)

    return progress


def kill_later(delay: float, choose: Callable[[int], int], patience: float = 10.0) -> None:
    """Wait until workers appear, then `delay` seconds more, then kill one; to be called in a thread beside `train`."""
    end = time.monotonic() + patience
    while not (workers := worker_processes()) and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(delay)
    workers = worker_processes()
    if workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            workers[choose(len(workers)) % len(workers)].kill()
