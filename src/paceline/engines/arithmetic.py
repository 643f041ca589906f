"""Everybody's arithmetic in one process: what the virtual engine computes and what a replay computes again.

One module serves all workers in turn. The operations, their order and the layout of memory are those of the local
engine, so the bits are too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.compute.autograd import Replica
from paceline.compute.home import (
    ReplicaHome,
    Room,
    ShardHome,
    optimizer_over,
    state_shapes,
)
from paceline.compute.layout import Layout
from paceline.compute.learner import Learner
from paceline.compute.payload import Computed, Payload
from paceline.core.agenda import Chunk
from paceline.core.meetings import Collective, Step, segment_cuts
from paceline.core.rooms import Rooms
from paceline.core.rules import Arrival
from paceline.data.source import Reader
from paceline.engines.setup import Setup, Snapshot


class _Snapshots:
    """Kept on the way, for evaluation afterwards."""

    setup: Setup
    snapshots: list[Snapshot]

    def values(self) -> list[Tensor]:
        raise NotImplementedError

    def keep(self, updates: int, seconds: float) -> None:
        every = self.setup.snapshots_every
        if every and updates % every == 0 and updates < self.setup.agenda.updates:
            values = self.values()
            self.snapshots.append(Snapshot(updates, seconds, lambda: values))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads, as the workers did: another number sums in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _learner(setup: Setup) -> tuple[Learner, torch.optim.Optimizer]:
    module = setup.fresh_module()
    replica = Replica(setup.job, module, setup.probe.moving)
    optimizer = setup.job.make_optimizer(module, replica.parameters)
    return Learner(replica, Reader(setup.source, setup.order(), 0, lambda _: None)), optimizer


class Together(_Snapshots):
    """All workers hold the same values: `sequential`, and every collective."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots = setup, []
        self.learner, optimizer = _learner(setup)
        self.home = ReplicaHome(self.learner.replica.parameters, optimizer, setup.job.schedule)
        self.meeting = setup.plan.meeting if setup.plan.synchronous else None
        if self.meeting is not None:
            length = Payload.length(setup.layout)
            self.flats = [torch.zeros(length, dtype=setup.layout.dtype) for _ in range(setup.plan.workers)]
            self.payloads = [Payload(setup.layout, flat) for flat in self.flats]

    def compute(self, chunks: list[Chunk]) -> Computed:
        """One worker's share of an update. Each starts from the same buffers."""
        start = [b.clone() for b in self.learner.replica.moving]
        computed = self.learner.compute(chunks)
        for buffer, value in zip(self.learner.replica.moving, start, strict=True):
            buffer.copy_(value)
        return computed

    def apply(self, shares: list[Computed]) -> None:
        """Meet, then let the rule apply the whole batch's gradient."""
        whole = shares[0] if self.meeting is None else self._meet(shares)
        self.setup.plan.rule.update(self.home, Arrival(self.learner.settle(whole)))

    def _meet(self, shares: list[Computed]) -> Computed:
        for payload, share in zip(self.payloads, shares, strict=True):
            payload.write(share)
        execute(self.meeting, self.flats, self.setup.layout)  # type: ignore[arg-type]
        return self.payloads[0].read(sum(share.samples for share in shares))

    def values(self) -> list[Tensor]:
        replica = self.learner.replica
        return [t.detach().clone() for t in (*replica.parameters, *replica.moving)]


def execute(meeting: Collective, flats: list[Tensor], layout: Layout) -> None:
    """A collective's table over vectors of one process."""
    workers = len(flats)
    cuts = segment_cuts(len(flats[0]), meeting.segments(workers), layout.bytes_per_number)
    tables: list[list[Step]] = [list(meeting.steps(worker, workers)) for worker in range(workers)]
    for row in zip(*tables, strict=True):
        sent = [flats[s.receive_from][cuts[s.receive] : cuts[s.receive + 1]].clone() for s in row]
        for worker, (step, received) in enumerate(zip(row, sent, strict=True)):
            mine = flats[worker][cuts[step.receive] : cuts[step.receive + 1]]
            mine.add_(received) if step.reduce else mine.copy_(received)


class Apart(_Snapshots):
    """Each worker holds its own, older values of every shard."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, workers = setup, [], setup.plan.workers
        self.learner, optimizer = _learner(setup)
        replica = self.learner.replica
        named = dict(replica.module.named_parameters())
        place = {id(p): number for number, p in enumerate(replica.parameters)}
        self.homes: list[list[ShardHome]] = []  # [worker][shard]
        self.which: list[list[int]] = []  # [shard] -> places of its parameters in the module
        self.rooms = Rooms(workers)
        self.states = [[0] * self.rooms.ints for _ in setup.layout.shards]
        columns, dtype = [], setup.layout.dtype
        for layout, state in zip(setup.layout.shards, self.states, strict=True):
            mine = [named[p.name] for p in layout.parameters]
            self.which.append([place[id(p)] for p in mine])
            twin = optimizer_over(optimizer, {p: p for p in mine})
            shapes = state_shapes(mine, twin)
            self.rooms.init(state)
            size = Room.size(layout, dtype, shapes)
            rooms = [Room(layout, dtype, shapes, torch.zeros(size, dtype=torch.uint8)) for _ in range(self.rooms.count)]
            for room in rooms:
                for view, parameter in zip(room.parameters, mine, strict=True):
                    view.copy_(parameter.detach())
            schedule = setup.job.schedule
            columns.append(
                [ShardHome(mine, optimizer_over(twin, {p: p for p in mine}), schedule, rooms) for _ in range(workers)]
            )
        self.homes = [list(row) for row in zip(*columns, strict=True)]
        self.buffers = [[b.clone() for b in replica.moving] for _ in range(workers)]
        self.newest_buffers = [b.clone() for b in replica.moving]
        self.gradients: list[Sequence[Tensor | None]] = [()] * workers

    def compute(self, worker: int, chunks: list[Chunk]) -> Computed:
        """The gradient of a whole batch, from what this worker holds."""
        for home, state in zip(self.homes[worker], self.states, strict=True):
            home.look(self.rooms.of(state, worker))
        self.learner.set_buffers(self.buffers[worker])
        computed = self.learner.compute(chunks)
        self.gradients[worker] = self.learner.settle(computed)
        self.buffers[worker] = [b.clone() for b in self.learner.replica.moving]
        return computed

    def push(self, worker: int, shard: int, version: int) -> None:
        """Make this version of the shard, and let the worker hold it."""
        home = self.homes[worker][shard]
        home.updates = version - 1
        home.move(*self.rooms.move(self.states[shard], worker))
        self.setup.plan.rule.update(home, Arrival([self.gradients[worker][n] for n in self.which[shard]]))
        if shard == 0:
            self.newest_buffers = self.buffers[worker]

    def newest(self, shard: int) -> Room:
        return self.homes[0][shard].rooms[self.rooms.newest(self.states[shard])]

    def values(self) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for shard, which in enumerate(self.which):
            found.update(zip(which, (v.clone() for v in self.newest(shard).parameters), strict=True))
        dtype = self.setup.layout.dtype  # as the shard keeps them
        return [found[n] for n in range(len(found))] + [b.to(dtype) for b in self.newest_buffers]
