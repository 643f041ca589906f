"""Forecasting a worker's next leases, so that their samples can be read ahead.

The desk gives leases out in order, to any worker that asks. So a worker's leases are about as far apart as they were so
far, and at first as far as there are workers. A wrong forecast costs time and never changes a result.

    given out to workers 0 and 1     0 1 0 1 1 0 1 . . . .
    forecast for worker 1                          ^   ^
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

PRIOR = 4  # the number of gaps, each as wide as there are workers, that the mean begins with


class Forecast:
    """Forecasts one worker's leases from the mean gap between those that it got."""

    def __init__(self, first: int, workers: int, leases: int) -> None:
        self.next, self.leases = first, leases
        self._gaps, self._width = PRIOR, PRIOR * workers
        self._last: int | None = None

    def leased(self, lease: int) -> None:
        """Note a lease that the worker got. One taken over from a dead worker says nothing about those to come."""
        if self._last is not None:
            if lease <= self._last:
                return
            self._gaps, self._width = self._gaps + 1, self._width + lease - self._last
        self._last = lease

    def coming(self) -> Iterator[int]:
        """Yield the leases to come, in order."""
        start = self.next if self._last is None else self._last
        for number in itertools.count(0 if self._last is None else 1):
            lease = start + round(number * self._width / self._gaps)
            if lease >= self.leases:
                return
            yield lease
