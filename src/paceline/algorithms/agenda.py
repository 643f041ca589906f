"""The samples of each update: pure arithmetic on positions in an epoch's order.

    epoch   |<-------------------- samples -------------------->|
    update  |<- batch_size x accumulate ->|<-          ->|<- r ->|    the last one may be smaller
    chunk   |<-  ->|<-  ->|<-  ->|<-  ->|                             accumulate x parts of them

A chunk is computed in one piece by one worker. Its number, not its worker, seeds all randomness in it, so the same
batch in the same chunks gives the same result at any worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple


class Chunk(NamedTuple):
    """A part of an update's samples, which one worker computes in one piece."""

    update: int
    number: int  # within its update
    epoch: int
    start: int  # positions in the epoch's order
    stop: int
    weight: float  # this chunk's share of the update's samples

    @property
    def samples(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Agenda:
    """Divides a training into updates, leases and chunks."""

    samples: int
    batch_size: int
    epochs: int
    accumulate: int = 1
    parts: int = 1  # chunks per batch
    limit: int | None = None  # stop after so many updates
    block: int = 1  # updates that a worker leases at once: local steps between two pushes
    shares: int = 1  # leases that an update is divided in
    data_parts: int = 0  # parts that the data are cut into, a lease each; 0: a lease is what comes next
    sizes: tuple[int, ...] = ()  # relative sizes of a batch's chunks, where they differ
    canonical: bool = (
        False  # whether chunks are added up in one order, in which those without samples have a place, too
    )

    @property
    def samples_per_update(self) -> int:
        return self.batch_size * self.accumulate

    @property
    def updates_per_epoch(self) -> int:
        return -(-self.samples // self.samples_per_update)

    @property
    def updates(self) -> int:
        if self.data_parts:
            return sum(map(self._updates_of, range(self.leases)))
        total = self.updates_per_epoch * self.epochs
        return total if self.limit is None else min(total, self.limit)

    @property
    def leases(self) -> int:
        if self.data_parts:
            return min(self.data_parts, self.updates_per_epoch, self.limit or self.data_parts)
        return -(-self.updates // self.block) * self.shares

    def tasks(self, lease: int) -> Sequence[int]:
        """Return the tasks of a lease, one gradient each.

        They are the updates of its part of the data, or the updates that come next, or its own share of one.
        """
        if self.data_parts:
            steps, (low, high) = self.updates_per_epoch, self._part(lease)
            tasks = (epoch * steps + step for epoch in range(self.epochs) for step in range(low, high))
            return list(islice(tasks, self._updates_of(lease)))
        return range(lease * self.block, min((lease + 1) * self.block, self.updates * self.shares))

    def lease(self, task: int) -> int:
        """Return the lease that a task belongs to."""
        if self.data_parts:
            steps = self.updates_per_epoch
            return ((task % steps + 1) * self.leases - 1) // steps
        return task // self.block

    def begins(self, task: int) -> bool:
        """Whether this is the first task on its part of the data."""
        return bool(self.data_parts) and task == self._part(self.lease(task))[0]

    @property
    def cuts(self) -> list[int]:
        """The positions in an epoch's order where parts of the data begin and end; every epoch keeps them apart."""
        ends = [self._part(lease)[1] for lease in range(self.leases)] if self.data_parts else []
        return [0, *(min(end * self.samples_per_update, self.samples) for end in ends)]

    def _part(self, lease: int) -> tuple[int, int]:
        """Return the steps of every epoch that visit a part of the data."""
        return self.updates_per_epoch * lease // self.leases, self.updates_per_epoch * (lease + 1) // self.leases

    def _updates_of(self, lease: int) -> int:
        """Return how many updates are made on a part of the data."""
        low, high = self._part(lease)
        total = self.epochs * (high - low)
        return total if self.limit is None else min(total, self.limit // self.leases)

    def task(self, number: int) -> list[Chunk]:
        """Return the chunks of a task that hold samples."""
        update, share = divmod(number, self.shares)
        return self.filled(update) if self.shares == 1 else self.mine(update, share)

    def made_by(self, version: int) -> int:
        """Return how many updates are in this version of a shard."""
        return min(version * self.block, self.updates)

    def done_by(self, finished: int) -> int:
        """Return the updates made when so many leases are finished; an estimate where leases are parts of the data."""
        if self.data_parts:
            return self.updates * finished // self.leases
        return self.made_by(finished // self.shares)

    def reaches(self, updates: int, every: int) -> bool:
        """Whether these updates are the first to reach another multiple of `every`. The last update does not count."""
        return bool(every) and updates % every < self.block and updates < self.updates

    def span(self, update: int) -> tuple[int, int, int]:
        """Return the (epoch, start, stop) of an update."""
        epoch, step = divmod(update, self.updates_per_epoch)
        start = step * self.samples_per_update
        return epoch, start, min(start + self.samples_per_update, self.samples)

    def chunks(self, update: int) -> list[Chunk]:
        """Return all chunks of an update; some may be empty when the last batch is smaller than `parts`."""
        epoch, start, stop = self.span(update)
        # Shares of several updates may be summed together, so they are weighed against a full one.
        total = stop - start if self.shares == 1 else self.samples_per_update
        result: list[Chunk] = []
        for first in range(start, stop, self.batch_size):
            size = min(first + self.batch_size, stop) - first
            cuts = [first + self._before(part, size) for part in range(self.parts + 1)]
            for part in range(self.parts):
                low, high = cuts[part], cuts[part + 1]
                result.append(Chunk(update, len(result), epoch, low, high, (high - low) / total))
        return result

    def filled(self, update: int) -> list[Chunk]:
        """Return the chunks of an update that hold samples: all, except in a last batch smaller than `parts`."""
        return [c for c in self.chunks(update) if c.samples]

    def mine(self, update: int, part: int) -> list[Chunk]:
        """Return the chunks of an update that one of `parts` workers computes."""
        epoch, start, stop = self.span(update)
        total = stop - start if self.shares == 1 else self.samples_per_update
        chunks = []
        for batch, first in enumerate(range(start, stop, self.batch_size)):
            size = min(first + self.batch_size, stop) - first
            low, high = first + self._before(part, size), first + self._before(part + 1, size)
            if high > low:
                number = batch * self.parts + part
                chunks.append(Chunk(update, number, epoch, low, high, (high - low) / total))
        return chunks

    def share(self, update: int, parts: Iterable[int]) -> list[Chunk]:
        """Return the chunks of an update that a worker computes who has these of its parts, part by part."""
        if not self.canonical:
            return [chunk for part in parts for chunk in self.mine(update, part)]
        chunks = self.chunks(update)
        return [chunk for part in parts for chunk in chunks[part :: self.parts]]

    def whole(self, update: int) -> list[Chunk]:
        """Return the chunks of an update that a worker computes alone."""
        return self.share(update, range(self.parts)) if self.canonical else self.filled(update)

    def _before(self, part: int, size: int) -> int:
        """Return how many samples of a batch of this size lie before a chunk."""
        if not self.sizes:
            return size * part // self.parts
        return size * sum(self.sizes[:part]) // sum(self.sizes)

    def samples_until(self, update: int) -> int:
        """Return the samples seen when `update` updates are done."""
        if self.data_parts:  # an estimate, as parts are taken in any order, and exact at the end
            return sum(map(self._samples_of, range(self.leases))) * update // self.updates
        epoch, step = divmod(update, self.updates_per_epoch)
        return epoch * self.samples + self._before_step(step)

    def _samples_of(self, lease: int) -> int:
        """Return the samples that are seen on a part of the data."""
        low, high = self._part(lease)
        epochs, steps = divmod(self._updates_of(lease), high - low)
        before = self._before_step(low)
        return epochs * (self._before_step(high) - before) + self._before_step(low + steps) - before

    def _before_step(self, step: int) -> int:
        """Return the samples of an epoch before one of its steps."""
        return min(step * self.samples_per_update, self.samples)


PRIOR = 4  # the number of gaps, each as wide as there are workers, that the mean begins with


class Forecast:
    """Forecasting a worker's next leases, so that their samples can be read ahead.

    The desk gives leases out in order, to any worker that asks. So a worker's leases are about as far apart as they
    were so far, and at first as far as there are workers. A wrong forecast costs time and never changes a result.

        given out to workers 0 and 1     0 1 0 1 1 0 1 . . . .
        forecast for worker 1                          ^   ^

    Forecasts one worker's leases from the mean gap between those that it got.
    """

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
