"""What is wrong although nothing has failed: data races, lost updates, and what `paceline check` suspects.

A *data race* is two accesses of one location, one of them a write, that no lock, queue, event, start or join orders.
Vector clocks as in Pozniansky and Schuster, "Efficient on-the-fly data race detection in multithreaded C++ programs",
PPoPP 2003 (DJIT+), without the epochs of FastTrack, since programs under exploration are short.

A *lost update* is a write over what another thread or task has written since the writer read it: in one line, as in
`n += 1`, or of a value that comes from what it read.

The story of a *suspected race* is that one thread reads, another one changes what was read, and the first acts on what
it has read, each at a line that the checker's finding names. A loop that reads again, or a second test under a lock, is
no such story.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.operation import Operation, Place
from paceline.concurrency.explore.strategies import Executed

Run: TypeAlias = Any  # of the scheduler, which imports this module
Clock = Counter[int]  # of which thread how many steps are known to have happened; `|` knows what either does
Access = tuple[int | str, Operation]  # of which thread, or task of asyncio
MOST = 50  # races of one run that are told apart
LOOKS = 200  # changes of one run at which a suspicion is tested


class Races:
    """Follows the clocks of threads and of what synchronises them, and compares accesses."""

    def __init__(self) -> None:
        self.all: dict[tuple[Place, Place], tuple[Access, Access]] = {}
        self.lost: tuple[Access, Access, Access] | None = None  # a read, the update that is lost, and the write
        self._released: dict[Hashable, Clock] = defaultdict(Counter)
        # By location and thread: when, and what.
        self._reads: dict[Hashable, dict[int, tuple[int, Operation]]] = defaultdict(dict)
        self._writes: dict[Hashable, dict[int, tuple[int, Operation]]] = defaultdict(dict)
        self._latest: dict[Hashable, Access] = {}  # write of a location
        self._base: dict[tuple[int | str, Hashable], tuple[Operation, Access | None]] = {}  # what one has read last

    def step(self, thread: int, clock: Clock, operation: Operation) -> None:
        """Take note of a step, and change the thread's clock."""
        if operation.is_access:
            self._access(thread, clock, operation)
            return
        for location, _ in operation.touches:
            if operation.acquires:
                clock |= self._released[location]
            if operation.releases:
                self._released[location] |= clock
        clock[thread] += operation.releases

    def findings(self, run: Run) -> Iterator[Finding]:
        for two in self.all.values():
            (one, *_), (other, _, place) = scenes = _scenes(two, run)
            subject = two[1][1].subject
            message = f"{one} and {other} access {subject}, and nothing orders the accesses"
            yield Finding("data race", message, scenes, f"hold one lock at both accesses of {subject}", place)

    def _access(self, thread: int, clock: Clock, operation: Operation) -> None:
        location, mode = operation.touches[0]  # the item or attribute itself; the others are of its container
        writes, reads = self._writes[location], self._reads[location]
        earlier = chain(writes.items(), () if mode == "read" else reads.items())
        for other, (number, access) in earlier if len(self.all) < MOST else ():
            if other != thread and number > clock[other]:
                self.all.setdefault((access.place, operation.place), ((other, access), (thread, operation)))
        (reads if mode == "read" else writes)[thread] = (clock[thread], operation)
        latest, who = self._latest.get(location), _task() or thread
        if mode == "read":
            self._base[who, location] = operation, latest
            return
        read, base = self._base.pop((who, location), (operation, latest))
        is_update = operation.verb == "updates" or (read.place == operation.place and operation.verb == "writes")
        if is_update and latest is not None and latest is not base and latest[0] != who:
            self.lost = self.lost or ((who, read), latest, (who, operation))
        self._latest[location] = who, operation


def _task() -> str:
    """Return the task of asyncio that runs, if one does."""
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    return f"task {task.get_name()}" if task is not None else ""


def _scenes(accesses: Sequence[Access], run: Run) -> tuple[tuple[str, str, Place], ...]:
    return tuple(
        (who if isinstance(who, str) else run.tasks[who].name, f"{each.verb} {each.subject}", each.place)
        for who, each in accesses
    )


class Suspect(NamedTuple):
    """The lines of a finding."""

    file: str
    lines: tuple[int, ...]
    is_race: bool  # so that the story itself is the oracle

    def has(self, operation: Operation) -> bool:
        return operation.place.line in self.lines and operation.place.file == self.file

    @property
    def target(self) -> frozenset[tuple[str, int]]:
        return frozenset((self.file, line) for line in self.lines)


def silent(suspects: Iterable[Suspect], run: Run) -> tuple[Suspect | None, Finding | None]:
    """Return what a run without a failure did wrong: a suspicion that it confirms, or a lost update."""
    threads = {each.option.thread for each in run.trace}
    for suspect in (each for each in suspects if each.is_race):
        for at in [at for at, step in enumerate(run.trace) if suspect.has(step.operation)][:LOOKS]:
            change, changer = run.trace[at].operation, run.trace[at].option.thread
            for thread in threads - {changer}:
                before = _next_of(thread, change, reversed(run.trace[:at]))
                after = _next_of(thread, change, run.trace[at + 1 :])
                if before and after and suspect.has(before) and suspect.has(after):
                    is_again = (after.place, after.verb) == (before.place, before.verb)
                    if before.touches[0].mode == "read" and not is_again:
                        three = (thread, before), (changer, change), (thread, after)
                        return suspect, _between("suspected race", three, run, "as `paceline check` suspects")
    lost = run.races.lost
    return None, lost and _between("lost update", lost, run, f"and what it writes to {lost[0][1].subject} is lost")


def _next_of(thread: int, change: Operation, steps: Iterable[Executed]) -> Operation | None:
    own = (each.operation for each in steps if each.option.thread == thread)
    return next((each for each in own if each.conflicts(change)), None)


def _between(kind: str, three: Sequence[Access], run: Run, note: str) -> Finding:
    scenes = _scenes(three, run)
    message = f"{scenes[1][0]} comes between two steps of {scenes[0][0]}, {note}"
    return Finding(kind, message, scenes, "hold one lock over both steps, or make them one", scenes[-1][2])
