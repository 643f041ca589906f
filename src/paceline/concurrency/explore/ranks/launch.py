"""Starts ranks: each executes the script as torchrun, or calls a function as `torch.multiprocessing.spawn` would."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import context
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader

from paceline.concurrency.explore.interpose import control, threads
from paceline.concurrency.explore.ranks.context import Context, torchrun_environment
from paceline.concurrency.explore.rewriting import importing
from paceline.concurrency.explore.scheduler import Task

_signal, _getsignal = signal.signal, signal.getsignal


def run_ranks(body: Callable[[], Any], ranks: int) -> None:
    """Run the body on so many ranks, in the environment of torchrun, and wait for all."""
    tasks = [start_rank(rank, body, torchrun_environment(rank, ranks)) for rank in range(ranks)]
    for task in tasks:
        threads.wait_for_end(task)


def start_rank(rank: int, body: Callable[[], Any], environment: dict[str, str]) -> Task:
    """Start one rank."""
    where = control.here()
    assert where is not None
    launcher = where[1]
    launcher.context = launcher.context or Context(None, dict(os.environ))

    def rank_body() -> None:
        torch.autograd.set_multithreading_enabled(False)
        body()

    return threads.start_task(f"rank {rank}", rank_body, Context(rank, environment))


def rank_of(task: Task | None) -> int | None:
    """Return the rank that a task belongs to."""
    return task.context.rank if task is not None and task.context is not None else None


def _spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Run `fn(rank, *args)` on ranks that import the script anew, as spawned processes do."""

    def body_of(rank: int) -> Callable[[], Any]:
        return lambda: _afresh(fn)(rank, *args)

    tasks = [start_rank(rank, body_of(rank), dict(os.environ)) for rank in range(nprocs)]
    handle = _Spawned(tasks)
    return None if join and handle.join() else handle


class _Spawned:
    """What `spawn(join=False)` returns."""

    def __init__(self, tasks: list[Task]) -> None:
        self._tasks = tasks

    def join(self, timeout: float | None = None) -> bool:
        return all(threads.wait_for_end(task, timeout) for task in self._tasks)


class Process:
    """`multiprocessing.Process`, as a rank: the n-th that a program starts is rank n."""

    _started = 0

    def __init__(
        self,
        group: None = None,
        target: Any = None,
        name: Any = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: Any = None,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._task: Task | None = None
        self._body = lambda: _afresh(target)(*args, **(kwargs or {}))

    def start(self) -> None:
        self._task = start_rank(Process._started, self._body, dict(os.environ))
        Process._started += 1

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None:
            threads.wait_for_end(self._task, timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    @property
    def exitcode(self) -> int | None:
        return 0 if self._task is not None and self._task.done else None


def _afresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as this rank's own module has it."""
    names = fn.__globals__
    if names["__name__"] == "__main__":
        module: Any = importing.run_script(names["__file__"], "__mp_main__")
        sys.modules["__main__"] = module
    elif control.MARK in names:
        module = importlib.import_module(names["__name__"])
    else:
        return fn
    for part in fn.__qualname__.split("."):
        module = getattr(module, part)
    result: Callable[..., Any] = module
    return result


def _rank_signal(number: int, handler: Any) -> Any:
    """Keep a rank's handler: Python allows handlers in the main thread only, and a rank takes its thread for that."""
    where = control.here()
    if where is None or rank_of(where[1]) is None:
        return _signal(number, handler)
    handlers = where[1].context.handlers
    before = handlers.get(number, signal.SIG_DFL)
    handlers[number] = handler
    return before


def _rank_getsignal(number: int) -> Any:
    where = control.here()
    if where is None or rank_of(where[1]) is None:
        return _getsignal(number)
    return where[1].context.handlers.get(number, signal.SIG_DFL)


_loader_init = DataLoader.__init__


def _loader_without_processes(self: Any, *args: Any, **settings: Any) -> None:
    """Read in the rank itself: a worker process cannot be forked from one of several threads."""
    if settings.get("num_workers"):
        settings |= {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0}
    _loader_init(self, *args, **settings)


def install() -> None:
    """Put the launchers in place."""
    modules: tuple[Any, ...] = (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"])
    for module in modules:
        module.spawn = _spawn
    contexts: tuple[Any, ...] = (context.SpawnContext, context.ForkContext, context.ForkServerContext)
    for owner in (torch.multiprocessing, multiprocessing, *contexts):
        owner.Process = Process
    signal.signal, signal.getsignal = _rank_signal, _rank_getsignal  # type: ignore[assignment]
    DataLoader.__init__ = _loader_without_processes  # type: ignore[method-assign]
    torch.set_num_threads(1)
