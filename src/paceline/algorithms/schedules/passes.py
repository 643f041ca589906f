"""The updates and micro-batches of each table of a training.

A schedule that flushes has a table for every update. One that does not has a single table for the whole training, which
may be long, so everything that can be computed on demand is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate

from paceline.algorithms.agenda import Agenda, Chunk


class Pass:
    """One table: its first update, and how many micro-batches each of its updates is made of."""

    def __init__(self, first: int, counts: tuple[int, ...], chunks: Callable[[int], list[Chunk]]) -> None:
        self.first, self.counts = first, counts
        self._begins = [0, *accumulate(counts)]
        #: The micro-batches of an update.
        self.chunks = lru_cache(maxsize=64)(chunks)

    @property
    def stop(self) -> int:
        """The update after its last."""
        return self.first + len(self.counts)

    def update(self, micro: int) -> int:
        """The update that this micro-batch of the table is in."""
        return self.first + bisect_right(self._begins, micro) - 1

    def opens(self, micro: int) -> bool:
        """Whether this micro-batch is the first of its update."""
        return self._begins[self.update(micro) - self.first] == micro

    def chunk(self, micro: int) -> Chunk:
        update = self.update(micro)
        return self.chunks(update)[micro - self._begins[update - self.first]]

    def ahead(self, micro: int, version: int) -> int:
        """Return the updates between a version of weights and the one that the micro-batch's gradient changes.

        Versions are in the table's count. An update makes the version after it.
        """
        return self.update(micro) - self.first - version


def passes(
    span: int, agenda: Agenda, start: int = 0, stop: int | None = None, replica: int = 0, replicas: int = 1
) -> Iterator[Pass]:
    """Yield the tables of the updates from `start` to `stop`, of `span` updates each (0: all).

    Where there are several replicas of the pipeline, each has the same number of neighbouring chunks of every batch.
    """

    def chunks(update: int) -> list[Chunk]:
        filled = agenda.filled(update)
        return [c for c in filled if c.number % agenda.parts * replicas // agenda.parts == replica]

    end = agenda.updates if stop is None else stop
    step = span or max(1, end - start)
    epoch = [len(chunks(update)) for update in range(min(end, agenda.updates_per_epoch))]  # all are alike
    for first in range(start, end, step):
        updates = range(first, min(first + step, end))
        yield Pass(first, tuple(epoch[update % agenda.updates_per_epoch] for update in updates), chunks)
