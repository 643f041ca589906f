"""Races: two accesses of one location, one of them a write, that no lock, queue, event, start or join orders.

Vector clocks as in Pozniansky and Schuster, "Efficient on-the-fly data race detection in multithreaded C++ programs",
PPoPP 2003 (DJIT+), without the epochs of FastTrack, since programs under exploration are short.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.operation import Operation

Clock = dict[int, int]


class Access(NamedTuple):
    """The last access of a location by a thread."""

    number: int  # of the thread's own clock
    operation: Operation


class Race(NamedTuple):
    """Two accesses that nothing orders."""

    first: tuple[int, Operation]
    second: tuple[int, Operation]


class Races:
    """Follows the clocks of threads and of what synchronises them, and compares accesses."""

    def __init__(self) -> None:
        self.first: Race | None = None
        self._released: dict[Hashable, Clock] = {}
        self._reads: dict[Hashable, dict[int, Access]] = {}
        self._writes: dict[Hashable, dict[int, Access]] = {}

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

    def finding(self, names: list[str]) -> Finding | None:
        """Return the first race as a finding."""
        if self.first is None:
            return None
        scenes = [
            (names[thread], f"{operation.verb} {operation.subject}", operation.place)
            for thread, operation in (self.first.first, self.first.second)
        ]
        subject = self.first.second[1].subject
        return Finding(
            "data race",
            f"{scenes[0][0]} and {scenes[1][0]} access {subject}, and nothing orders the accesses",
            tuple(scenes),
            f"hold one lock at both accesses of {subject}",
            scenes[1][2],
        )

    def _access(self, thread: int, clock: Clock, operation: Operation) -> None:
        location, mode = operation.touches[0]  # the item or attribute itself; the others are of its container
        writes, reads = self._writes.setdefault(location, {}), self._reads.setdefault(location, {})
        against = [writes] if mode == "read" else [writes, reads]
        if self.first is None:
            for earlier in against:
                for other, access in earlier.items():
                    if other != thread and access.number > clock.get(other, 0):
                        self.first = Race((other, access.operation), (thread, operation))
        (reads if mode == "read" else writes)[thread] = Access(clock.get(thread, 0), operation)


def join(clock: Clock, other: Clock) -> None:
    """Let a clock know all that another one knows."""
    for thread, number in other.items():
        if number > clock.get(thread, 0):
            clock[thread] = number
