"""Which samples each update sees: pure arithmetic on positions in an epoch's order.

    epoch   |<-------------------- samples -------------------->|
    update  |<- batch_size x accumulate ->|<-          ->|<- r ->|    the last one may be smaller
    chunk   |<-  ->|<-  ->|<-  ->|<-  ->|                             accumulate x parts of them

A chunk is computed in one piece by one worker. Its number, not its worker, decides all chance in it, so the same
batch in the same chunks is the same mathematics whoever computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Chunk(NamedTuple):
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
    samples: int
    batch_size: int
    epochs: int
    accumulate: int = 1
    parts: int = 1  # chunks per batch
    limit: int | None = None  # stop after so many updates
    block: int = 1  # updates that a worker leases at once: local steps between two pushes
    shares: int = 1  # leases that an update is divided in
    data_parts: int = 0  # parts that the data are cut into, a lease each; 0: a lease is what comes next

    @property
    def samples_per_update(self) -> int:
        return self.batch_size * self.accumulate

    @property
    def updates_per_epoch(self) -> int:
        return -(-self.samples // self.samples_per_update)

    @property
    def updates(self) -> int:
        if self.data_parts:
            return sum(len(self.tasks(lease)) for lease in range(self.leases))
        whole = self.updates_per_epoch * self.epochs
        return whole if self.limit is None else min(whole, self.limit)

    @property
    def leases(self) -> int:
        if self.data_parts:
            return min(self.data_parts, self.updates_per_epoch, self.limit or self.data_parts)
        return -(-self.updates // self.block) * self.shares

    def tasks(self, lease: int) -> Sequence[int]:
        """What a lease has its worker compute, one gradient each: the updates of its part of the data, or those that
        come next, or its own share of one.
        """
        if self.data_parts:
            steps, (low, high) = self.updates_per_epoch, self._part(lease)
            tasks = [epoch * steps + step for epoch in range(self.epochs) for step in range(low, high)]
            return tasks if self.limit is None else tasks[: self.limit // self.leases]
        return range(lease * self.block, min((lease + 1) * self.block, self.updates * self.shares))

    def lease(self, task: int) -> int:
        """Whose task this is."""
        if self.data_parts:
            steps = self.updates_per_epoch
            return ((task % steps + 1) * self.leases - 1) // steps
        return task // self.block

    def begins(self, task: int) -> bool:
        """Whether this is the first task on its part of the data."""
        return bool(self.data_parts) and task == self._part(self.lease(task))[0]

    @property
    def cuts(self) -> list[int]:
        """Where in an epoch's order parts of the data begin and end; every epoch keeps them apart."""
        ends = [self._part(lease)[1] for lease in range(self.leases)] if self.data_parts else []
        return [0, *(min(end * self.samples_per_update, self.samples) for end in ends)]

    def _part(self, lease: int) -> tuple[int, int]:
        """The steps of every epoch that visit a part of the data."""
        return self.updates_per_epoch * lease // self.leases, self.updates_per_epoch * (lease + 1) // self.leases

    def task(self, number: int) -> list[Chunk]:
        """The chunks that hold samples."""
        update, share = divmod(number, self.shares)
        return self.filled(update) if self.shares == 1 else self.mine(update, share)

    def made_by(self, version: int) -> int:
        """Updates that are in this version of a shard."""
        return min(version * self.block, self.updates)

    def done_by(self, finished: int) -> int:
        """Updates that are made when so many leases are finished; about so many, where leases are parts of the data."""
        if self.data_parts:
            return self.updates * finished // self.leases
        return self.made_by(finished // self.shares)

    def reaches(self, updates: int, every: int) -> bool:
        """Whether these updates are the first to reach another multiple of `every`; the last of all are the result."""
        return bool(every) and updates % every < self.block and updates < self.updates

    def span(self, update: int) -> tuple[int, int, int]:
        """(epoch, start, stop) of an update."""
        epoch, step = divmod(update, self.updates_per_epoch)
        start = step * self.samples_per_update
        return epoch, start, min(start + self.samples_per_update, self.samples)

    def chunks(self, update: int) -> list[Chunk]:
        """All chunks of an update; some may be empty when the last batch is smaller than `parts`."""
        epoch, start, stop = self.span(update)
        # Shares of several updates may be added up together, so they are weighed against a full one.
        whole = stop - start if self.shares == 1 else self.samples_per_update
        result: list[Chunk] = []
        for first in range(start, stop, self.batch_size):
            size = min(first + self.batch_size, stop) - first
            cuts = [first + size * part // self.parts for part in range(self.parts + 1)]
            for part in range(self.parts):
                low, high = cuts[part], cuts[part + 1]
                result.append(Chunk(update, len(result), epoch, low, high, (high - low) / whole))
        return result

    def filled(self, update: int) -> list[Chunk]:
        """The chunks of an update that hold samples: all of them, but for a last batch smaller than `parts`."""
        return [c for c in self.chunks(update) if c.samples]

    def mine(self, update: int, part: int) -> list[Chunk]:
        """The chunks of an update that fall to one of `parts` workers."""
        return [c for c in self.chunks(update)[part :: self.parts] if c.samples]

    def samples_until(self, update: int) -> int:
        """Samples seen when `update` updates are done."""
        if self.data_parts:  # in whatever order parts are taken: about so many, and at the end exactly
            tasks = [task for lease in range(self.leases) for task in self.tasks(lease)]
            return sum(c.samples for task in tasks for c in self.task(task)) * update // len(tasks)
        epoch, step = divmod(update, self.updates_per_epoch)
        return epoch * self.samples + min(step * self.samples_per_update, self.samples)
