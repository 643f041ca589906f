"""One run, in a process of its own, so that nothing of it reaches the next one."""

from __future__ import annotations

import _thread
import asyncio
import builtins
import gc
import importlib
import os
import pickle
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from paceline.concurrency.explore import trace
from paceline.concurrency.explore.failures import exception_in
from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.interpose import control, event_loop, futures, threads
from paceline.concurrency.explore.rewriting import importing
from paceline.concurrency.explore.scheduler import Run, Task, real_monotonic, real_sleep
from paceline.concurrency.explore.settings import Settings, Target
from paceline.concurrency.explore.story import story_of
from paceline.concurrency.explore.strategies import Strategy
from paceline.concurrency.explore.strategies.replay import Switch

RANKS = "paceline.concurrency.explore.ranks"  # whose modules are imported only where there are ranks
STALL = 0.5  # real seconds without a step and without work, after which a thread blocks outside the control


class Outcome(NamedTuple):
    """What a run did."""

    finding: Finding | None = None
    switches: tuple[Switch, ...] = ()
    steps: int = 0
    shared: frozenset[str] = frozenset()  # data that threads shared
    outside: tuple[str, ...] = ()  # where threads blocked outside the control
    race: Finding | None = None
    output: bytes = b""
    trace: bytes = b""
    files: tuple[str, ...] = ()  # that were rewritten
    modules: tuple[str, ...] = ()  # that were imported
    lost: str = ""  # why there is no outcome
    drill: dict[str, Any] | None = None


def run_once(
    target: Target, settings: Settings, strategy: Strategy, shared: frozenset[str] | None, traced: bool = False
) -> Outcome:
    """Run the program once, in a child process."""
    read, write = os.pipe()
    pid = os.fork()  # paceline: ignore  # this process has one thread
    if pid == 0:
        os.close(read)
        try:
            _Child(target, settings, strategy, shared, traced, write).run()
        finally:
            os._exit(70)  # not reached unless something in this package is wrong
    os.close(write)
    try:
        return _outcome(read, settings.run_seconds)
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)  # it has reported, or is too late
        os.waitpid(pid, 0)


def _outcome(read: int, seconds: float) -> Outcome:
    data, end = bytearray(), time.monotonic() + seconds
    while True:
        if not select.select([read], [], [], max(0.0, end - time.monotonic()))[0]:
            return Outcome(lost=f"a run has not ended within {seconds:g} s: it waits, or computes, outside the control")
        part = os.read(read, 1 << 20)
        if not part:
            break
        data += part
    if not data:
        return Outcome(lost="a run has ended without an outcome: the program has ended its process")
    outcome: Outcome = pickle.loads(bytes(data))
    return outcome


class _Child:
    """The child process."""

    def __init__(
        self,
        target: Target,
        settings: Settings,
        strategy: Strategy,
        shared: frozenset[str] | None,
        traced: bool,
        write: int,
    ) -> None:
        self._target, self._settings, self._traced, self._write = target, settings, traced, write
        self._modules = frozenset(sys.modules)
        self._output = os.memfd_create("output")
        self._fault: Any = None
        self._ended = _thread.allocate_lock()
        self._run = Run(strategy, settings.bounds, self.finish, shared)

    def run(self) -> NoReturn:
        """Run the program as the first task, and end."""
        os.dup2(self._output, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        run, main = self._run, self._run.add("MainThread")
        control.begin(run)
        run.begin(main)
        futures.begin()
        _thread.start_new_thread(self._watch, ())
        try:
            self._execute()
            self._leave(main)
        except BaseException as error:
            finding = failure(error)
            if finding is None:
                self._leave(main)
            self.finish(finding)

    def _execute(self) -> None:
        """Execute the program, once or on every rank."""
        settings, target = self._settings, self._target
        if settings.drill:
            from paceline.concurrency.explore.ranks import drills

            self._fault = drills.fault(settings.drill, settings.ranks)
            drills.arm(self._fault)
        if settings.ranks:
            from paceline.concurrency.explore.ranks.launch import run_ranks

            run_ranks(lambda: execute(target), settings.ranks)
        else:
            execute(target)

    def _leave(self, main: Task) -> NoReturn:
        """Do what Python does at its end: wait for the threads of pools, then for all that are not daemons."""
        futures.end()
        for task in self._run.tasks[1:]:
            if not task.daemon:
                threads.wait_for_end(task)
        gc.collect()  # so that tasks whose exception no one has read say so
        finding = futures.unread() or next(iter(event_loop.unread), None)
        if finding is None and RANKS in sys.modules:
            finding = sys.modules[f"{RANKS}.replicas"].diverged()
        self.finish(finding)

    def finish(self, finding: Finding | None) -> NoReturn:
        """Report, and end the process, from whatever thread."""
        if not self._ended.acquire(False):
            real_sleep(3600)  # another thread reports
        run = self._run
        if finding is not None:
            finding = story_of(finding, run)
        builtins.print(end="", flush=True)
        race = run.races.finding([each.name for each in run.tasks])
        outcome = Outcome(
            finding,
            tuple(run.switches),
            run.steps,
            frozenset(run.sharing.names),
            tuple(run.outside),
            story_of(race, run) if race else None,
            os.pread(self._output, 1 << 20, 0),
            trace.encode(run.trace, run.pending()) if self._traced else b"",
            tuple(importing.compiled),
            tuple(set(sys.modules) - self._modules),
            drill=None if self._fault is None else sys.modules[f"{RANKS}.drills"].outcome(self._fault, finding),
        )
        data = pickle.dumps(outcome)
        while data:
            data = data[os.write(self._write, data) :]
        os._exit(0)

    def _watch(self) -> None:
        """Let others continue when a thread waits where it cannot be scheduled: for a real lock or a process."""
        run, steps, used, since = self._run, -1, 0.0, real_monotonic()
        while True:
            real_sleep(STALL / 5)
            if run.steps != steps or time.process_time() - used > STALL / 10:
                steps, used, since = run.steps, time.process_time(), real_monotonic()
            elif real_monotonic() - since > STALL:
                since = real_monotonic()
                where = run.running_line()
                if where:
                    run.outside[where] = None
                run.leave()


def execute(target: Target) -> None:
    """Execute the program in this process."""
    if not target.function:
        sys.argv = [target.file, *target.arguments]
        sys.path.insert(0, str(Path(target.file).resolve().parent))
        importing.run_script(str(Path(target.file).resolve()))
        return
    sys.argv = [str(target), *target.arguments]
    if target.file:
        sys.path.insert(0, str(Path(target.file).resolve().parent))
    else:
        sys.path.insert(0, os.getcwd())
    module = importlib.import_module(Path(target.file).stem if target.file else target.module)
    result = getattr(module, target.function)()
    if asyncio.iscoroutine(result):
        asyncio.run(result)


def failure(error: BaseException, who: str = "MainThread") -> Finding | None:
    """Return what an exception that ended the program means; None for an exit with success."""
    if not isinstance(error, SystemExit):
        return exception_in(who, error)
    if error.code in (None, 0):
        return None
    return exception_in(who, error, "exit", f": the program ends with {error.code!r}")
