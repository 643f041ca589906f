"""What is wrong although nothing has failed: data races, lost updates, and what `paceline check` suspects.

A *data race* is two accesses of one location, one of them a write, that no lock, queue, event, start or join orders.
Vector clocks as in Pozniansky and Schuster, "Efficient on-the-fly data race detection in multithreaded C++ programs",
PPoPP 2003 (DJIT+), without the epochs of FastTrack, since programs under exploration are short.

A *lost update* is a write over what another thread has written since the writer read it, in one line: `n += 1`.

The story of a *suspected race* is that one thread reads, another one changes what was read, and the first acts on what
it has read, each at a line that the checker's finding names. A loop that reads again, or a second test under a lock, is
no such story.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.operation import Operation, Place
from paceline.concurrency.explore.strategies import Executed

Run: TypeAlias = Any  # of the scheduler, which imports this module
Clock = dict[int, int]
Access = tuple[int, Operation]  # of which thread
MOST = 50  # races of one run that are told apart
LOOKS = 200  # changes of one run at which a suspicion is tested


class Races:
    """Follows the clocks of threads and of what synchronises them, and compares accesses."""

    def __init__(self) -> None:
        self.all: dict[tuple[Place, Place], tuple[Access, Access]] = {}
        self.lost: tuple[Access, Access, Access] | None = None  # a read, the update that is lost, and the write
        self._released: dict[Hashable, Clock] = {}
        self._reads: dict[Hashable, dict[int, tuple[int, Operation]]] = {}  # by location and thread: when, and what
        self._writes: dict[Hashable, dict[int, tuple[int, Operation]]] = {}
        self._latest: dict[Hashable, Access] = {}  # write of a location
        self._base: dict[tuple[int, Hashable], tuple[Operation, Access | None]] = {}  # a thread's read, and of what

    def step(self, thread: int, clock: Clock, operation: Operation) -> None:
        """Take note of a step, and change the thread's clock."""
        if operation.is_access:
            self._access(thread, clock, operation)
            return
        for location, _ in operation.touches:
            if operation.acquires:
                join(clock, self._released.get(location, {}))
            if operation.releases:
                join(self._released.setdefault(location, {}), clock)
        if operation.releases:
            clock[thread] = clock.get(thread, 0) + 1

    def findings(self, names: list[str]) -> list[Finding]:
        return [_race(one, other, names) for one, other in self.all.values()]

    def _access(self, thread: int, clock: Clock, operation: Operation) -> None:
        location, mode = operation.touches[0]  # the item or attribute itself; the others are of its container
        writes, reads = self._writes.setdefault(location, {}), self._reads.setdefault(location, {})
        against = [writes] if mode == "read" else [writes, reads]
        for earlier in against if len(self.all) < MOST else ():
            for other, (number, access) in earlier.items():
                if other != thread and number > clock.get(other, 0):
                    race = ((other, access), (thread, operation))
                    self.all.setdefault((access.place, operation.place), race)
        (reads if mode == "read" else writes)[thread] = (clock.get(thread, 0), operation)
        latest = self._latest.get(location)
        if mode == "read":
            self._base[thread, location] = operation, latest
            return
        read, base = self._base.pop((thread, location), (operation, latest))
        is_update = read.place == operation.place and operation.verb == "writes"
        if is_update and latest is not None and latest is not base and latest[0] != thread:
            self.lost = self.lost or ((thread, read), latest, (thread, operation))
        self._latest[location] = thread, operation


def _race(one: Access, other: Access, names: list[str]) -> Finding:
    scenes = _scenes((one, other), names)
    subject = other[1].subject
    message = f"{scenes[0][0]} and {scenes[1][0]} access {subject}, and nothing orders the accesses"
    return Finding("data race", message, scenes, f"hold one lock at both accesses of {subject}", scenes[1][2])


def _scenes(accesses: Iterable[Access], names: Sequence[str]) -> tuple[tuple[str, str, Place], ...]:
    return tuple((names[thread], f"{each.verb} {each.subject}", each.place) for thread, each in accesses)


def join(clock: Clock, other: Clock) -> None:
    """Let a clock know all that another one knows."""
    for thread, number in other.items():
        if number > clock.get(thread, 0):
            clock[thread] = number


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
        changes = [at for at, step in enumerate(run.trace) if suspect.has(step.operation)][:LOOKS]
        for at in changes:
            for thread in threads - {run.trace[at].option.thread}:
                if three := _around(run.trace, at, thread, suspect):
                    return suspect, _between("suspected race", three, run, "as `paceline check` suspects")
    lost = run.races.lost
    return None, lost and _between("lost update", lost, run, f"and what it writes to {lost[0][1].subject} is lost")


def _around(trace: Sequence[Executed], at: int, thread: int, suspect: Suspect) -> tuple[Access, ...]:
    """Return a read, the change at a step, and the act on what was read; nothing if the thread does something else."""
    change = trace[at].operation
    before = _next_of(thread, change, reversed(trace[:at]))
    if before is None or before.touches[0].mode != "read" or not suspect.has(before):
        return ()
    after = _next_of(thread, change, trace[at + 1 :])
    if after is None or not suspect.has(after) or (after.place, after.verb) == (before.place, before.verb):
        return ()
    return (thread, before), (trace[at].option.thread, change), (thread, after)


def _next_of(thread: int, change: Operation, steps: Iterable[Executed]) -> Operation | None:
    own = (each.operation for each in steps if each.option.thread == thread)
    return next((each for each in own if each.conflicts(change)), None)


def _between(kind: str, three: Sequence[Access], run: Run, note: str) -> Finding:
    scenes = _scenes(three, [each.name for each in run.tasks])
    message = f"{scenes[1][0]} comes between two steps of {scenes[0][0]}, {note}"
    return Finding(kind, message, scenes, "hold one lock over both steps, or make them one", scenes[-1][2])
