"""One run, in a process of its own, so that nothing of it reaches the next one."""

from __future__ import annotations

import _thread
import asyncio
import builtins
import gc
import importlib
import math
import os
import pickle
import select
import signal
import sys
import time
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from paceline.concurrency.explore.finding import Finding, at, exception_in, story_of
from paceline.concurrency.explore.interpose import control, threads
from paceline.concurrency.explore.interpose.chance import Random, begin
from paceline.concurrency.explore.operation import Operation
from paceline.concurrency.explore.oracles import Suspect, silent
from paceline.concurrency.explore.rewriting import importing
from paceline.concurrency.explore.scheduler import Run, is_working, processor_seconds, real_monotonic, real_sleep
from paceline.concurrency.explore.session import Settings, Target
from paceline.concurrency.explore.strategies import Chance, Executed, Strategy, Switch
from paceline.concurrency.explore.strategies.directed import Target as Lines
from paceline.concurrency.explore.strategies.directed import targets

RANKS = "paceline.concurrency.explore.ranks"  # whose modules are imported only where there are ranks
LONG = 1500  # steps of a run, above which `dpor` is left out: it would try the last passes of a loop for ever
PATIENCE = 5  # times as long as a run may take on a machine without other work
STALL = 0.5  # real seconds without a step and without work, after which a thread blocks outside the control


class Outcome(NamedTuple):
    """What a run did."""

    finding: Finding | None = None
    switches: tuple[Switch, ...] = ()
    steps: int = 0
    shared: frozenset[str] = frozenset()  # data that threads shared
    outside: tuple[str, ...] = ()  # where threads blocked outside the control
    races: tuple[Finding, ...] = ()
    suspect: Suspect | None = None  # that the finding confirms
    output: bytes | None = None  # of a run that was not cut short
    trace: tuple[list[Executed], dict[int, Operation]] | None = None
    targets: frozenset[Lines] = frozenset()  # lines at which threads conflicted
    lines: frozenset[tuple[str, int]] = frozenset()  # that were executed
    files: tuple[str, ...] = ()  # that were rewritten
    modules: tuple[str, ...] = ()  # that were imported
    lost: str = ""  # why there is no outcome
    drill: dict[str, Any] | None = None
    draws: int = 0  # of random numbers
    chance: Chance = Chance()
    is_alone: bool = False  # one thread ran, and no task waited
    excluded: float = math.inf  # seconds by which a deadline was too far away to pass early


class Job(NamedTuple):
    """What is run once."""

    target: Target
    settings: Settings
    strategy: Strategy
    shared: frozenset[str] | None  # data that threads are known to share
    traced: bool = False  # whether the search learns from the steps
    chance: Chance = Chance()


def run_once(job: Job) -> Outcome:
    read, write = os.pipe()
    pid = os.fork()  # this process has one thread
    if pid == 0:
        os.close(read)
        try:
            _Child(job, write).run()
        finally:
            os._exit(70)  # not reached unless something in this package is wrong
    os.close(write)
    try:
        return _outcome(read, job.settings.run_seconds, pid)
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)  # it has reported, or is too late
        os.waitpid(pid, 0)


def _outcome(read: int, seconds: float, pid: int) -> Outcome:
    data, begin, idle = bytearray(), time.monotonic(), 0
    while True:
        if not select.select([read], [], [], 1.0)[0]:
            late = (time.monotonic() - begin) / seconds  # on a busy machine, a run that works is waited for longer
            idle = 0 if is_working(str(pid), 1) else idle + 1
            if late < 1 or (late < PATIENCE and idle < 3 and processor_seconds(pid) < seconds):
                continue
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

    def __init__(self, job: Job, write: int) -> None:
        self._target, self._settings, self._traced, self._write = job.target, job.settings, job.traced, write
        self._modules, self._output = frozenset(sys.modules), os.memfd_create("output")
        self._fault: Any = None
        self._ended = _thread.allocate_lock()
        self._chance, collect_at = job.chance, begin(job.chance)
        steps, passes, late = job.settings.steps, job.settings.passes, job.settings.late
        self._run = Run(job.strategy, steps, self.finish, job.shared, passes, collect_at, late)

    def run(self) -> NoReturn:
        os.dup2(self._output, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        control.run, main = self._run, self._run.add("MainThread")
        self._run.begin(main)
        threads.begin()
        sys.set_coroutine_origin_tracking_depth(1)
        gc.disable()  # garbage is collected when the run says so
        _thread.start_new_thread(self._watch, ())
        try:
            self._execute()
            self._leave()
        except SystemExit as error:
            if error.code not in (None, 0):
                note = f": the program ends with {error.code!r}"
                self.finish(exception_in("MainThread", error, "exit", note))
            self._leave()
        except BaseException as error:
            self.finish(exception_in("MainThread", error))

    def _execute(self) -> None:
        """Execute the program, once or on every rank."""
        settings = self._settings
        if settings.drill:
            from paceline.concurrency.explore.ranks import drills

            self._fault = drills.fault(settings.drill)
            drills.arm(self._fault)
        if settings.ranks:
            from paceline.concurrency.explore.ranks.launch import run_ranks

            run_ranks(lambda: execute(self._target), settings.ranks)
        else:
            execute(self._target)

    def _leave(self) -> NoReturn:
        """Do what Python does at its end: wait for the threads of pools, then for all that are not daemons."""
        threads.end()
        for task in self._run.tasks[1:]:
            if not task.daemon:
                threads.wait_for_end(task)
        gc.collect()  # so that tasks whose exception no one has read say so
        finding = threads.unread() or next(iter(control.notes), None)
        if finding is None and RANKS in sys.modules:
            finding = sys.modules[f"{RANKS}.drills"].diverged()
        self.finish(finding)

    def finish(self, finding: Finding | None) -> NoReturn:
        """Report, and end the process, from whatever thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # a handler would begin again
        if not self._ended.acquire(False):
            real_sleep(3600)  # another thread reports
        run, suspect, lost = self._run, None, ""
        if finding is not None and finding.kind == "not supported":
            lost, finding = f"{finding.message}{at(finding.place)}", None
        if finding is None and not lost:
            suspect, finding = silent(self._settings.suspects, run)
        if finding is not None and finding.kind == "deadlock":  # what it may come from
            notes = tuple((each.kind, each.message, each.place) for each in control.notes)
            finding = replace(finding, story=notes + finding.story)
        builtins.print(end="", flush=True)
        longest = 0 if lost else sys.maxsize if self._settings.ranks else LONG
        outcome = Outcome(
            finding and story_of(finding, run),
            tuple(run.switches),
            run.steps,
            frozenset(run.sharing.names),
            tuple(run.outside),
            tuple(story_of(race, run) for race in run.races.findings(run)),
            suspect,
            None if run.is_cut_short else os.pread(self._output, 1 << 20, 0),
            (run.trace, run.pending()) if self._traced and len(run.trace) <= longest else None,
            frozenset(targets(run.trace)),
            frozenset(run.lines) if self._settings.suspects else frozenset(),
            tuple(importing.compiled),
            tuple(set(sys.modules) - self._modules),
            lost,
            drill=None if self._fault is None else sys.modules[f"{RANKS}.drills"].outcome(self._fault, finding),
            draws=Random.draws,
            chance=self._chance,
            excluded=run.excluded,
            is_alone=len(run.tasks) == 1 and not any("loop" in str(each.operation.subject) for each in run.trace),
        )
        data = pickle.dumps(outcome)
        while data:
            data = data[os.write(self._write, data) :]
        os._exit(0)

    def _watch(self) -> None:
        """Let others continue when a thread waits where it cannot be scheduled: for a real lock or a process."""
        run, steps, since = self._run, -1, real_monotonic()
        while True:
            real_sleep(STALL / 5)
            if run.steps != steps or not (where := run.blocked_line()):
                steps, since = run.steps, real_monotonic()
            elif real_monotonic() - since > STALL:
                since = real_monotonic()
                run.outside[where] = None
                run.leave()


def execute(target: Target) -> None:
    file = Path(target.file).resolve()
    sys.argv = [str(target), *target.arguments]
    folder, module = file.parent, file.stem
    while target.function and (folder / "__init__.py").exists():
        folder, module = folder.parent, f"{folder.name}.{module}"
    if target.test:
        from paceline.concurrency.explore.pytest_plugin import run_test

        run_test(f"{file}::{target.test}")
        return
    sys.path[:0] = [str(folder) if target.file else os.getcwd()]
    if not target.function:
        importing.run_script(str(file))
        return
    sys.path[1:1] = [os.getcwd(), str(Path("src").resolve())]  # as tests have them
    call: Any = importlib.import_module(module if target.file else target.module)
    result = attrgetter(target.function)(call)()
    if asyncio.iscoroutine(result):
        asyncio.run(result)
