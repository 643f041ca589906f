"""DPOR, dynamic partial order reduction, with sleep sets: a search that ends.

Flanagan and Godefroid, "Dynamic partial-order reduction for model checking software", POPL 2005; sleep sets: Godefroid,
"Partial-order methods for the verification of concurrent systems", 1996.

Two runs in which conflicting operations come in the same order are equivalent. The search is a depth-first walk over
the runs, from the start each time. After a run it looks, for each operation, for the last earlier operation of another
thread that conflicts with it and did not have to come before it; at that point the other order is still to be tried
(`todo`). A thread whose step was explored at a node sleeps there, and until an operation conflicts with its own: a run
in which only sleeping threads could continue repeats an earlier one and is cut short.

When nothing is left to do, every order of conflicting operations was executed. Time passes only where no thread can
continue: early time-outs are no part of the proof, and the verdict says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.explore.operation import Mode, Operation, Option
from paceline.explore.strategies import Decision, Executed

Clock = dict[int, int]  # thread -> how many of its steps are known to have happened
CONFLICTING: dict[Mode, tuple[Mode, ...]] = {
    "read": ("mark", "write"),
    "mark": ("read", "write"),
    "write": ("read", "mark", "write"),
}


@dataclass(slots=True)
class Node:
    """The state before a step of the present run."""

    options: tuple[Option, ...]
    chosen: Option
    sleep: set[Option]  # explored from an earlier node, in an order that is equivalent
    done: set[Option] = field(default_factory=set)
    todo: set[Option] = field(default_factory=set)


class DporRun:
    """Follows the steps up to a node, takes the step that is to be tried there, and continues in the plain order."""

    def __init__(self, path: Sequence[Option], sleep: set[Option]) -> None:
        self._path, self._at, self._sleep = path, 0, sleep
        self._pending: Mapping[int, Operation] = {}

    def pick(self, decision: Decision) -> Option | None:
        self._pending = dict(decision.pending)
        if self._at < len(self._path):
            chosen = self._path[self._at]
            # A program that draws a random number may not repeat itself: then the run is of no use.
            return chosen if chosen in decision.options else None
        awake = [each for each in usable(decision.options) if each not in self._sleep]
        if not awake:
            return None
        return decision.plain if decision.plain in awake else awake[0]

    def executed(self, option: Option, operation: Operation) -> None:
        self._at += 1
        if self._at >= len(self._path):
            self._sleep = asleep_after(self._sleep, option, operation, self._pending)


class Dpor:
    """The depth-first search."""

    name = "dpor"

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._begun = False
        self.runs = 0
        self.ended = False  # nothing is left to try
        self.has_timeouts = False  # a run could have let time pass earlier

    def next(self) -> DporRun | None:
        self.runs += 1
        if not self._begun:
            self._begun = True
            return DporRun((), set())
        while self._nodes:
            node = self._nodes[-1]
            node.done.add(node.chosen)
            left = sorted(node.todo - node.done - node.sleep)
            if left:
                node.chosen = left[0]
                return DporRun([each.chosen for each in self._nodes], node.sleep | node.done)
            self._nodes.pop()
        self.runs -= 1
        self.ended = True
        return None

    def begin_again(self) -> None:
        """Forget what was explored."""
        self._nodes, self._begun, self.runs, self.ended = [], False, 0, False

    def learn(self, run: Sequence[Executed]) -> None:
        sleep = self._nodes[-1].sleep | self._nodes[-1].done if self._nodes else set()
        since = max(0, len(self._nodes) - 1)
        for at, step in enumerate(run[since:], since):
            if at >= len(self._nodes):
                self._nodes.append(Node(usable(step.options), step.option, sleep, todo={step.option}))
            sleep = asleep_after(sleep, step.option, step.operation, step.pending)
        self.has_timeouts |= any(len(usable(step.options)) < len(step.options) for step in run)
        for at, option in races(run, since):
            node = self._nodes[at]
            enabled = set(node.options)
            node.todo |= {option} if option in enabled else enabled


def asleep_after(
    sleep: set[Option], option: Option, operation: Operation, pending: Mapping[int, Operation]
) -> set[Option]:
    """Return the options that still sleep after a step: those whose next operation does not conflict with it."""
    return {
        each
        for each in sleep
        if each.thread != option.thread and each.thread in pending and not pending[each.thread].conflicts(operation)
    }


def usable(options: Sequence[Option]) -> tuple[Option, ...]:
    """Return the options of threads that can continue; if there are none, the one whose deadline comes first."""
    on = tuple(each for each in options if not each.expires)
    return on or tuple(options[:1])


def races(run: Sequence[Executed], since: int = 0) -> list[tuple[int, Option]]:
    """Return where the other order is to be tried: the step before which, and the option that would begin it.

    Those of the steps before `since` are known from earlier runs.
    """
    orders, result = _Orders(), list[tuple[int, Option]]()

    def compare(late: Option, operation: Operation) -> None:
        for earlier in orders.unordered(late.thread, operation):
            result.append((earlier, _first_of_other_order(run, earlier, late, orders)))

    for at, step in enumerate(run):
        if at >= since:
            compare(step.option, step.operation)
        orders.add(at, step.option.thread, step.operation)
    if run:  # what the other threads would have done next conflicts too
        for thread, operation in run[-1].pending.items():
            if thread != run[-1].option.thread:
                compare(Option(thread, False), operation)
    return result


def _first_of_other_order(run: Sequence[Executed], earlier: int, late: Option, orders: _Orders) -> Option:
    """Return the step with which the other order begins: the late thread's, or one that it depends on."""
    enabled = usable(run[earlier].options)
    if late in enabled:
        return late
    clock = orders.clock(late.thread)
    for at, number in orders.steps_after(earlier):
        option = run[at].option
        if option in enabled and number <= clock.get(option.thread, 0) and option.thread != late.thread:
            return option
    return late


class _Past(NamedTuple):
    """A step as the later ones see it."""

    at: int
    thread: int
    number: int  # the how many-eth step of its thread
    clock: Clock
    operation: Operation
    mode: Mode


class _Orders:
    """Which steps of a run had to come before which, by vector clocks."""

    def __init__(self) -> None:
        self._clocks: dict[int, Clock] = {}
        self._past: dict[Hashable, list[_Past]] = {}  # of each location
        self._numbers: list[int] = []

    def clock(self, thread: int) -> Clock:
        return self._clocks.get(thread, {})

    def steps_after(self, earlier: int) -> list[tuple[int, int]]:
        """Return the steps that were added after one: of the run, and the how many-eth of its thread each was."""
        return list(enumerate(self._numbers))[earlier + 1 :]

    def unordered(self, thread: int, operation: Operation) -> list[int]:
        """Return the last conflicting step of each other thread that could come after this operation as well."""
        clock, last = self.clock(thread), dict[int, int]()
        for touch in operation.touches:
            for past in reversed(self._past.get(touch.location, [])):
                ordered = past.number <= clock.get(past.thread, 0)
                if ordered and past.mode == "write":
                    break  # which everything earlier came before
                if past.mode in CONFLICTING[touch.mode] and not ordered and past.thread != thread:
                    if not never_together(past.operation, operation):
                        last[past.thread] = max(last.get(past.thread, -1), past.at)
        return sorted(last.values())

    def add(self, at: int, thread: int, operation: Operation) -> None:
        clock = dict(self.clock(thread))
        for touch in operation.touches:
            for past in reversed(self._past.get(touch.location, [])):
                if past.mode in CONFLICTING[touch.mode]:
                    for each, number in past.clock.items():
                        clock[each] = max(clock.get(each, 0), number)
                if past.mode == "write":
                    break
        clock[thread] = number = clock.get(thread, 0) + 1
        self._clocks[thread] = clock
        self._numbers.append(number)
        for touch in operation.touches:
            self._past.setdefault(touch.location, []).append(_Past(at, thread, number, clock, operation, touch.mode))


def never_together(before: Operation, operation: Operation) -> bool:
    """Whether the two can never both be possible: a lock is released by its holder, and acquired when it is free."""
    return before.verb == "releases" and operation.verb == "takes"
