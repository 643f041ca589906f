"""The clock of a history, and the messages that are under way."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from math import log
from typing import Any, NamedTuple

from paceline.algorithms.cluster.messages import Process

LATEST = 5.0  # seconds


class Cut(NamedTuple):
    """A cut: no message from `sources` reaches `targets` until `end`."""

    end: float
    sources: frozenset[Process]
    targets: frozenset[Process]


class Wire:
    """Carries messages, and knows what time it is."""

    def __init__(self, chance: random.Random, quiet: float, loss: float, double: float, late: float) -> None:
        """Messages are lost, doubled and late with these chances until `quiet`; after it the network is good."""
        self.chance, self.quiet, self.loss, self.double, self.late = chance, quiet, loss, double, late
        self.now = 0.0
        self.cuts: list[Cut] = []
        #: Messages that were sent, and what became of some of them.
        self.sent = self.lost = self.doubled = self.delayed = self.cut = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call a function at that time."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, action, arguments))

    def step(self) -> None:
        """Go on to the next thing that happens."""
        self.now, _, action, arguments = heapq.heappop(self._queue)
        action(*arguments)

    def carry(self, sender: Process, to: Process, deliver: Callable[..., None], *arguments: Any) -> None:
        """Put a message on the network: `deliver` is called with these arguments when it arrives."""
        chance = self.chance.random
        self.sent += 1
        if self.now >= self.quiet:
            self.at(self.now + 0.002 - 0.002 * log(1.0 - chance()), deliver, sender, to, *arguments)
            return
        if self.loss and chance() < self.loss:
            self.lost += 1
            return
        copies = 1
        if self.double and chance() < self.double:
            copies = 2
            self.doubled += 1
        for _ in range(copies):
            delay = 0.002 - 0.02 * log(1.0 - chance())
            if self.late and chance() < self.late:
                delay += LATEST * chance()
                self.delayed += 1
            self.at(self.now + delay, deliver, sender, to, *arguments)

    def cuts_off(self, sender: Process, to: Process) -> bool:
        """Whether a message is lost on a link that is cut."""
        self.cuts = [cut for cut in self.cuts if cut.end > self.now]
        is_cut = any(sender in cut.sources and to in cut.targets for cut in self.cuts)
        self.cut += is_cut
        return is_cut
