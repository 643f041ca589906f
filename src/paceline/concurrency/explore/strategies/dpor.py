"""DPOR, dynamic partial order reduction, with source sets and sleep sets: a search that ends.

Abdulla, Aronis, Jonsson and Sagonas, "Optimal dynamic partial order reduction", POPL 2014 (there: source-DPOR), after
Flanagan and Godefroid, POPL 2005; sleep sets: Godefroid, "Partial-order methods for the verification of concurrent
systems", 1996. Persistent sets, as of 2005, miss orders when they are combined with sleep sets.

The search is a depth-first walk over the runs, from the start each time. After a run it looks for *races*: an
operation and an earlier one of another thread that conflict, and that nothing between them orders. One of the
*initials*, with which the other order could begin, is put on the list of what is still to be tried (`todo`) before the
earlier one, unless one is on it already. A thread whose step was explored at a node sleeps there until an operation
conflicts with its own: a run in which only sleeping threads could continue repeats an earlier one and is cut short.

When nothing is left to do, every order of conflicting operations was executed. Time passes only where no thread can
continue: early time-outs are no part of the proof, and the verdict says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.concurrency.explore.operation import Mode, Operation, Option, conflict
from paceline.concurrency.explore.strategies import Decision, Executed

Clock = Counter[int]  # of which thread how many steps are known to have happened


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
        self._path, self._sleep = list(path), sleep

    def pick(self, decision: Decision) -> Option | None:
        # A program that draws a random number may not repeat itself: then the run is of no use.
        awake = self._path[:1] or [each for each in usable(decision.options) if each not in self._sleep]
        if not awake or awake[0] not in decision.options:
            return None
        chosen = decision.plain if decision.plain in awake else awake[0]
        del self._path[:1]
        if not self._path:
            self._sleep = asleep_after(self._sleep, chosen, decision.pending[chosen.thread], decision.pending)
        return chosen


class Dpor:
    """The depth-first search."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self.runs = 0
        self.has_timeouts = False  # a run could have let time pass earlier

    def next(self) -> DporRun | None:
        """Return the strategy of the next run; None if nothing is left to try."""
        while self._nodes:
            node = self._nodes[-1]
            node.done.add(node.chosen)
            options = sorted(node.todo - node.done - node.sleep)
            if options:
                self.runs += 1
                node.chosen = options[0]
                return DporRun([each.chosen for each in self._nodes], node.sleep | node.done)
            self._nodes.pop()
        if self.runs:
            return None
        self.runs = 1
        return DporRun((), set())

    def learn(self, run: Sequence[Executed], pending: Mapping[int, Operation]) -> None:
        sleep = self._nodes[-1].sleep | self._nodes[-1].done if self._nodes else set()
        since = max(0, len(self._nodes) - 1)
        for at, step in enumerate(run[since:], since):
            if at >= len(self._nodes):
                self._nodes.append(Node(usable(step.options), step.option, sleep, todo={step.option}))
            sleep = asleep_after(sleep, step.option, step.operation, step.pending)
        self.has_timeouts |= any(len(usable(step.options)) < len(step.options) for step in run)
        for at, initials in races(run, pending, since):
            node = self._nodes[at]
            if not initials & node.todo:
                possible = sorted(initials.intersection(node.options))
                node.todo.update(possible[:1] or node.options)


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


def races(run: Sequence[Executed], pending: Mapping[int, Operation], since: int) -> list[tuple[int, set[Option]]]:
    """Return where the other order of a race is to be tried: before which step, and the options that could begin it.

    The races of the steps before `since` are known from earlier runs. What threads would have done next is `pending`: a
    blocked thread races with the one that blocks it.
    """
    orders, result = _Orders(), list[tuple[int, set[Option]]]()

    def compare(late: Option, operation: Operation) -> None:
        for earlier in orders.unordered(late.thread, operation):
            if not _enables(run, earlier, late.thread, operation):
                result.append((earlier, orders.initials(run, earlier, late, operation)))

    for at, step in enumerate(run):
        if at >= since:
            compare(step.option, step.operation)
        orders.add(step.option.thread, step.operation)
    for thread, operation in pending.items():
        compare(Option(thread, False), operation)
    return result


def _enables(run: Sequence[Executed], at: int, thread: int, operation: Operation) -> bool:
    """Whether a step lets a thread continue that was blocked before it."""
    option, is_next = Option(thread, False), run[at].pending.get(thread) is operation
    return is_next and option not in run[at].options and at + 1 < len(run) and option in run[at + 1].options


class _Past(NamedTuple):
    """A step as the later ones see it."""

    thread: int
    clock: Clock
    operation: Operation

    def is_known_to(self, clock: Clock) -> bool:
        return self.clock[self.thread] <= clock[self.thread]


class _Orders:
    """Which steps of a run had to come before which, by vector clocks."""

    def __init__(self) -> None:
        self._clocks: dict[int, Clock] = defaultdict(Counter)
        self._steps: list[_Past] = []
        # At each location, of thread, mode, release.
        self._last: dict[Hashable, dict[tuple[int, Mode, bool], int]] = defaultdict(dict)

    def initials(self, run: Sequence[Executed], earlier: int, late: Option, operation: Operation) -> set[Option]:
        """Return the steps that could come first if the late operation came before the earlier one.

        Those are among the steps that do not happen after the earlier one, and the late operation itself.
        """
        first: set[Option] = set()
        before: list[_Past] = []
        start = self._steps[earlier]
        last = _Past(late.thread, self._clock_after(late.thread, operation), operation)
        options = [*(each.option for each in run[earlier + 1 : len(self._steps)]), late]
        for option, step in zip(options, [*self._steps[earlier + 1 :], last], strict=True):
            if step is last or not start.is_known_to(step.clock):
                if not any(each.is_known_to(step.clock) for each in before):
                    first.add(option)
                before.append(step)  # its own earlier steps included
        return first

    def unordered(self, thread: int, operation: Operation) -> list[int]:
        """Return the last conflicting step of each other thread that could come after this operation as well."""
        known, steps = self._clocks[thread], Counter[int]()
        for at in self._conflicting(operation):
            past = self._steps[at]
            # A lock is released by its holder, and taken when it is free: the two are never both possible.
            never_together = past.operation.verb == "releases" and operation.verb == "takes"
            if not (past.thread == thread or never_together or past.is_known_to(known)):
                steps[past.thread] = max(at, steps[past.thread])
        return sorted(steps.values())

    def add(self, thread: int, operation: Operation) -> None:
        clock = self._clocks[thread] = self._clock_after(thread, operation)
        for touch in operation.touches:
            self._last[touch.location][thread, touch.mode, operation.verb == "releases"] = len(self._steps)
        self._steps.append(_Past(thread, clock, operation))

    def _clock_after(self, thread: int, operation: Operation) -> Clock:
        """Return what a thread knows after an operation: all that the conflicting steps before it knew."""
        clock = self._clocks[thread].copy()
        for at in self._conflicting(operation):
            clock |= self._steps[at].clock
        clock[thread] += 1
        return clock

    def _conflicting(self, operation: Operation) -> Iterator[int]:
        """Yield conflicting steps; those of a thread before its last one are ordered by that."""
        for touch in operation.touches:
            for (_, mode, _), at in self._last[touch.location].items():
                if conflict(mode, touch.mode):
                    yield at
