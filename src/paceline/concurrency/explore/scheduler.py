"""One thread runs at a time, and who is next is chosen at every operation.

A thread announces its operation to `Run.perform` and stops until it is chosen; it makes the choice itself, and opens
the *gate* of the one that it has chosen. Nothing here knows of locks or queues: an operation says whether it is ready.
Time passes only when an option is chosen that *expires*: then it is the deadline of that thread.
"""

from __future__ import annotations

import _thread
import fcntl
import gc
import math
import os
import select
import sys
import termios
import time
from array import array
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_stack
from typing import Any, NoReturn

from paceline.concurrency.explore.finding import Finding, circle_of, deadlock, first_place
from paceline.concurrency.explore.operation import Operation, Option, Place
from paceline.concurrency.explore.oracles import Clock, Races
from paceline.concurrency.explore.strategies import Decision, Executed, Strategy, Switch

real_sleep, real_monotonic = time.sleep, time.monotonic  # the real ones, which the program does not get

DAY, START = 86_400.0, 1_000_000.0  # virtual seconds; small enough for the loop of asyncio to add nanoseconds
#: Steps that a thread makes in a row in the plain order: Python lets the others run after a while too.
QUANTUM = 2000
SELDOM = 128  # of a long loop, where all its passes would be too many
POLLS = 1000  # a program that has let time pass so often, and has not ended, polls for what never comes
OUTSIDE_PATIENCE = 2.0  # real seconds for an answer from outside the control: a socket, a thread of a library


@dataclass(slots=True, eq=False)
class Task:
    """A thread under control, or a rank."""

    number: int
    name: str
    daemon: bool = False
    context: Any = None  # of a rank: what is swapped when it continues
    gate: Any = field(default_factory=_thread.allocate_lock)
    pending: Operation | None = None
    done: bool = False
    expired: bool = False
    outside: bool = False  # it blocks where it cannot be scheduled
    is_working: bool = False  # up to its next operation, which takes it any time
    ready_since: float | None = None  # the virtual time; None while it waits
    ahead: float = 0.0  # of the common clock: for so long others have worked while it waited
    steps: int = 0
    quiet: int = 0  # in how many sections that are not interrupted it is
    clock: Clock = field(default_factory=Counter)
    signals: list[Callable[[], Any]] = field(default_factory=list)  # handlers that are to be called

    def __post_init__(self) -> None:
        self.gate.acquire()

    def __str__(self) -> str:
        return f"the end of {self.name}"


class Sharing:
    """Which data threads share: accessed by two of them, and written since there are two."""

    def __init__(self, shared_names: frozenset[str] | None) -> None:
        self.names = set[str]()
        self._known = shared_names
        self._accesses: dict[Hashable, tuple[set[int], set[str], set[str]]] = {}  # threads, modes, names

    def can_matter(self, thread: int, operation: Operation) -> bool:
        """Take note of an access; return whether a thread can be interrupted before it."""
        name = str(operation.subject)
        for location, mode in operation.touches:
            threads, modes, names = self._accesses.setdefault(location, (set(), set(), set()))
            threads.add(thread)
            modes.add(mode)
            names.add(name)
            if len(threads) > 1 and modes != {"read"} and modes != {"mark"}:
                self.names |= names
        return self._known is None or name in self._known


class Run:
    """One execution of the program, under one strategy."""

    def __init__(
        self,
        strategy: Strategy,
        most: int,
        finish: Callable[[Finding | None], NoReturn],
        shared: frozenset[str] | None = None,
        passes: int = 0,
        collect_at: int = 0,
        late: float = math.inf,
    ) -> None:
        """Prepare a run; threads are interrupted only at the `shared` data, once it is known.

        Of the passes of a thread over a line, they are interrupted only at so many, and then at one of many. At one
        step garbage is collected. Time passes only while each thread that can continue is at most so `late`.
        """
        self.sharing = Sharing(shared)
        self.tasks: list[Task] = []
        self.now, self.steps = START, 0
        self.switches: list[Switch] = []  # the deviations from the plain order: they are the schedule
        self.is_cut_short = False  # because it would repeat an earlier run
        self.turns = 0  # how many of them only end the turn of a thread that runs on and on
        self.trace: list[Executed] = []
        self.races = Races()
        self.outside: dict[str, None] = {}  # where a thread blocked outside the control
        self.excluded = math.inf  # for how long a thread would have had to wait, so that a deadline passes earlier
        self.lines = set[tuple[str, int]]()  # that were executed, those without an operation left out
        self._strategy, self._most = strategy, most  # of steps
        self.finish = finish  # ends the run, and with it the process
        self._by_ident: dict[int, Task] = {}
        self._running: Task | None = None
        self._in_a_row = 0
        self._collect_at, self._late, self._is_too_late = collect_at, late, False
        self._passes, self._passed = passes, Counter[tuple[int, str, tuple[str, int]]]()

    # ---- threads

    def add(self, name: str, daemon: bool = False, context: Any = None) -> Task:
        """Make a task; what its parent has done happens before all that it does."""
        parent = self.current()
        task = Task(len(self.tasks), name, daemon, context or (parent.context if parent else None))
        if parent is not None:
            task.clock |= parent.clock
            parent.clock[parent.number] += 1
        task.clock[task.number] = 1
        self.tasks.append(task)
        return task

    def begin(self, task: Task) -> None:
        """Let the real thread that calls this be the task; it waits here until it is first chosen."""
        if self.tasks[0] is not task:
            task.gate.acquire()
        self._by_ident[_thread.get_ident()] = task
        self._running = task

    def end(self, task: Task) -> None:
        """Let another task continue, for good."""
        del self._by_ident[_thread.get_ident()]
        task.done, task.pending = True, None
        self._hand_over(task)

    def current(self) -> Task | None:
        """Return the task of the thread that calls this; None for a thread that is not under control."""
        return self._by_ident.get(_thread.get_ident())

    # ---- steps

    def perform(self, task: Task, operation: Operation) -> bool:
        """Wait until the operation is chosen; False if its deadline passed first. Its effect is the caller's."""
        if task.quiet and operation.ready():
            return True
        if self._collect_at and self.steps >= self._collect_at:
            self._collect_at = 0
            gc.collect()  # a destructor may make steps of its own
        while task.signals:
            task.signals.pop(0)()
        task.expired, task.ready_since = False, None
        task.steps += 1
        self.lines.add(operation.place[:2])
        is_private = operation.is_data and not self.sharing.can_matter(task.number, operation)
        if is_private:
            self._count()
        is_lock = not operation.is_data and operation.ready()
        if is_private or (is_lock and self.is_one_of_many(task, operation.verb, operation.place[:2])):
            self.races.step(task.number, task.clock, operation)
            return True
        task.pending, task.is_working = operation, operation.ready()
        is_back, task.outside = task.outside, False
        if is_back and self._running is not None:
            task.gate.acquire()
        else:
            if operation.deadline is None and not operation.ready() and (waits := circle_of(self.tasks, task)):
                self.finish(deadlock(waits, [each for each in self.tasks if each not in waits]))
            self._hand_over(task)
        task.pending = None
        self.races.step(task.number, task.clock, operation)
        return not task.expired

    def is_one_of_many(self, task: Task, verb: str, place: tuple[str, int]) -> bool:
        """Count the passes of a thread over a line: after the first ones, only each `SELDOM`-th is a step."""
        if not self._passes:
            return False
        passage = task.number, verb, place
        self._passed[passage] += 1
        self._in_a_row += 1
        return self._passed[passage] > self._passes and self._passed[passage] % SELDOM > 0

    def leave(self) -> None:
        """Let another task continue while the running one blocks outside the control; a watchdog calls this."""
        task = self._running
        if task is not None:
            task.outside, self._running = True, None
            self._open(task, self._choose(task))

    def blocked_line(self) -> str:
        """Return where the running thread waits outside the control, as `MainThread at app.py:7`; empty if it works."""
        task = self._running
        if task is None or task not in self._by_ident.values() or is_working("self", 2):
            return ""
        return f"{task.name} at {self._place(task) or 'the start of Python'}"

    def _place(self, task: Task) -> Place | None:
        """Return the line at which the real thread of a task is."""
        ident = next(ident for ident, each in self._by_ident.items() if each is task)
        return first_place(walk_stack(sys._current_frames().get(ident)))

    def _hand_over(self, task: Task) -> None:
        chosen = self._choose(task)
        if chosen is not task:
            self._open(task, chosen)
            if not task.done:
                task.gate.acquire()

    def _open(self, task: Task, chosen: Task) -> None:
        self._running, self._in_a_row = chosen, 0
        if chosen.context is not task.context:
            task.context.leave()
            chosen.context.enter()
        chosen.gate.release()

    # ---- choices

    def _choose(self, task: Task) -> Task:
        """Return the task that makes the next step."""
        self._count()
        options = self.options() or self._wait_outside()
        pending = self.pending()
        plain, is_turn = self._plain(task, options)
        chosen = self._strategy.pick(Decision(self.steps, task.number, task.steps, options, pending, plain))
        if chosen is None:
            self.is_cut_short = True
            self.finish(None)
        if chosen != plain or is_turn:
            self.turns += chosen == plain
            self.switches.append(Switch(task.number, task.steps, chosen.thread, chosen.expires))
        operation = pending[chosen.thread]
        self.trace.append(Executed(chosen, operation, tuple(options), pending))
        following = self.tasks[chosen.thread]
        following.expired = chosen.expires or not operation.ready()
        if chosen.expires:
            assert operation.deadline is not None
            late = operation.deadline - self.now
            following.ahead += late if self._is_too_late else 0
            self.now += 0 if self._is_too_late else late
        return following

    def _count(self) -> None:
        self.steps += 1
        self._in_a_row += 1
        if self.steps > self._most or self.now - START > DAY:
            self.finish(self._never_ends())

    def pending(self) -> dict[int, Operation]:
        return {each.number: each.pending for each in self.tasks if each.pending is not None}

    def options(self) -> list[Option]:
        """Return the possible next steps; those for which time must pass come last: the earliest deadlines.

        A thread that runs on and on leaves its turn to the others, and to those that sleep. What one thread computes
        may exhaust the patience of another, but the clock stands still while any thread waits for its turn too long.
        """
        waiting = [(each, each.pending) for each in self.tasks if each.pending is not None and not each.outside]
        timed = [(operation.deadline, each) for each, operation in waiting if operation.deadline is not None]
        first = min((deadline for deadline, _ in timed if deadline > self.now), default=self.now)
        due, ready = {each for deadline, each in timed if deadline <= self.now}, list[Task]()
        for task, operation in waiting:
            is_ready = task in due or operation.ready()
            task.ready_since = None if not is_ready else self.now if task.ready_since is None else task.ready_since
            ready += [task] if is_ready else []
        if self._is_turn_over() and (first > self.now or len(ready) > 1):
            ready = [each for each in ready if each is not self._running]
        since = min((each.ready_since for each in ready if each.ready_since is not None), default=first)
        self._is_too_late = first - since > self._late
        if self._is_too_late and ready:
            self.excluded = min(self.excluded, first - since)
        works = any(each.is_working for each in ready)
        late = [
            Option(task.number, True)
            for task, operation in waiting
            if operation.deadline == first > self.now
            and (not self._is_too_late or (works and not operation.is_timer and task not in ready))
        ]
        return [Option(each.number, False) for each in ready] + late

    def _is_turn_over(self) -> bool:
        return self._in_a_row >= QUANTUM

    def _plain(self, task: Task, options: list[Option]) -> tuple[Option, bool]:
        """Return the step without a switch, the same thread or the next one; and whether a thread's turn is over."""
        on = [each for each in options if not each.expires] or options[:1]
        same = Option(task.number, False)
        following = next((each for each in on if each.thread > task.number), on[0])
        return (same, False) if same in on else (following, self._is_turn_over())

    def _wait_outside(self) -> list[Option]:
        """Wait for an answer from outside the control, for a while; there is a deadlock if none comes."""
        end, options = real_monotonic() + OUTSIDE_PATIENCE, list[Option]()
        under_control = {*self._by_ident.values(), *(each for each in self.tasks if not each.done)}
        is_outside: Callable[[], bool] = lambda: any(each.outside and not each.done for each in self.tasks)  # noqa: E731
        # The watchdog is a further thread, but it changes nothing.
        while (is_outside() or _thread._count() > len(under_control)) and not options and real_monotonic() < end:
            real_sleep(0.002)
            options = self.options()
        return options or self.finish(self._outside_deadlock() if is_outside() else deadlock([], self.tasks))

    def _outside_deadlock(self) -> Finding | None:
        """Describe a wait for a program that itself waits for a reader; of others, the report says where they are."""
        pipe = unread_pipe()
        scenes = tuple((each.name, "waits", self._place(each)) for each in self.tasks if each.outside)
        message = f"{pipe} is full, and the program that writes it waits for a reader"
        return Finding("deadlock", message, scenes, "read all pipes of a program at once") if pipe else None

    def _never_ends(self) -> Finding:
        """Describe a run that has not ended within the bounds."""
        waits = sum(each.option.expires for each in self.trace)
        polls = waits > POLLS or self.now - START > DAY
        bound = f"{self.steps - 1:,} steps and {self.now - START:,.0f} virtual seconds"
        scenes = [
            (each.name, f"still {each.pending.verb} {each.pending.subject}", each.pending.place)
            for each in self.tasks
            if each.pending is not None
        ]
        # A program that ends in the plain order is not too long.
        kind = "never ends" if polls or len(self.switches) > self.turns else "too long"
        return Finding(kind, f"the program has not ended after {bound}", tuple(scenes))


def unread_pipe() -> str:
    """Return the name of a full pipe from a program that this one has started; empty if there is none."""
    for each in gc.get_objects() if "subprocess" in sys.modules else ():
        if isinstance(each, sys.modules["subprocess"].Popen):
            for name in ("stdout", "stderr"):
                end, size = getattr(each, name), array("i", [0])
                if end is not None and not end.closed:
                    fcntl.ioctl(end, termios.FIONREAD, size)
                    if size[0] > fcntl.fcntl(end, fcntl.F_GETPIPE_SZ) - select.PIPE_BUF:
                        return f"the {name} of {each.args if isinstance(each.args, str) else each.args[0]}"
    return ""


def is_working(process: str, threads: int) -> bool:
    """Whether so many threads run, or wait for a processor or a disk: on a busy machine, that may take long."""
    states = [file.read_text().rpartition(") ")[2][0] for file in Path(f"/proc/{process}/task").glob("*/stat")]
    return sum(state in "RD" for state in states) >= threads


def processor_seconds(pid: int) -> float:
    """Return how long a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
