"""A clock that jumps to the next thing that happens."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Let `what` happen at `time`; of two things at one time, what was said first."""
        self._count += 1
        heapq.heappush(self._coming, (time, self._count, what))

    def run(self) -> None:
        while self._coming:
            self.now, _, what = heapq.heappop(self._coming)
            what()
