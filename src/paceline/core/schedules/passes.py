"""Which updates and micro-batches one table after the other is about.

A schedule that flushes has a table for every update; one that does not has one for the whole training.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paceline.core.agenda import Agenda, Chunk


class Pass(NamedTuple):
    first: int  # update
    counts: tuple[int, ...]  # micro-batches of each update
    chunks: tuple[Chunk, ...]  # of all, one after the other

    @property
    def last(self) -> tuple[int, ...]:
        """The micro-batch that ends each update."""
        ends, end = [], -1
        for count in self.counts:
            end += count
            ends.append(end)
        return tuple(ends)


def passes(span: int, agenda: Agenda, start: int = 0, stop: int | None = None) -> Iterator[Pass]:
    """One table after the other, of `span` updates each (0: all), for the updates from `start` to `stop`."""
    end = agenda.updates if stop is None else stop
    step = span or max(1, end - start)
    for first in range(start, end, step):
        filled = [agenda.filled(update) for update in range(first, min(first + step, end))]
        yield Pass(first, tuple(map(len, filled)), tuple(chunk for chunks in filled for chunk in chunks))
