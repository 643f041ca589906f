"""Races: two accesses of one location, one of them a write, that no lock, queue, event, start or join orders.

Vector clocks as in Pozniansky and Schuster, "Efficient on-the-fly data race detection in multithreaded C++ programs",
PPoPP 2003 (DJIT+), without the epochs of FastTrack, since programs under exploration are short.
"""

from __future__ import annotations

from collections.abc import Hashable

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.operation import Operation, Place

Clock = dict[int, int]
MOST = 50  # races of one run that are told apart


Race = tuple[tuple[int, Operation], tuple[int, Operation]]  # accesses that nothing orders, and their threads


class Races:
    """Follows the clocks of threads and of what synchronises them, and compares accesses."""

    def __init__(self) -> None:
        self.all: dict[tuple[Place, Place], Race] = {}
        self._released: dict[Hashable, Clock] = {}
        self._reads: dict[Hashable, dict[int, tuple[int, Operation]]] = {}  # by location and thread: when, and what
        self._writes: dict[Hashable, dict[int, tuple[int, Operation]]] = {}

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
        return [_finding(race, names) for race in self.all.values()]

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


def _finding(race: Race, names: list[str]) -> Finding:
    scenes = [(names[thread], f"{each.verb} {each.subject}", each.place) for thread, each in race]
    subject = race[1][1].subject
    return Finding(
        "data race",
        f"{scenes[0][0]} and {scenes[1][0]} access {subject}, and nothing orders the accesses",
        tuple(scenes),
        f"hold one lock at both accesses of {subject}",
        scenes[1][2],
    )


def join(clock: Clock, other: Clock) -> None:
    """Let a clock know all that another one knows."""
    for thread, number in other.items():
        if number > clock.get(thread, 0):
            clock[thread] = number
