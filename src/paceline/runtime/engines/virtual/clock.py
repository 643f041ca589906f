"""A simulated clock, which goes to the next event at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Runs events in the order of their times, without waiting between them."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time: float, what: Callable[..., None], *arguments: Any) -> None:
        """Schedule `what(*arguments)` for `time`; events of one time run in the order in which they were scheduled."""
        self._count += 1
        heapq.heappush(self._events, (time, self._count, what, arguments))

    def run(self) -> None:
        events, pop = self._events, heapq.heappop
        while events:
            self.now, _, what, arguments = pop(events)
            what(*arguments)
