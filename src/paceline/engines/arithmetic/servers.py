"""Plans with a server: each worker holds what it pulled, and pushes come one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.agenda import Chunk
from paceline.core.rules import Arrival
from paceline.core.server.events import Push
from paceline.core.server.version_slots import Replicas, VersionSlots
from paceline.engines.arithmetic.common import Snapshots, make_encoders, make_learner
from paceline.engines.setup import Setup
from paceline.gradients.gather_buffers import GatherBuffers
from paceline.gradients.payload import GradientSum, Payload
from paceline.parameters.replicas import ExchangingReplica, GossipReplica, middle
from paceline.parameters.row_store import shard_store
from paceline.parameters.rows import Journal
from paceline.parameters.store import (
    LocalStore,
    ShardStore,
    ShardVersion,
    optimizer_over,
    version_shape,
)


class Apart(Snapshots):
    """Each worker holds its own, older values of every shard."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, workers = setup, [], setup.plan.workers
        self.learner, optimizer = make_learner(setup)
        replica = self.learner.replica
        named = dict(replica.module.named_parameters())
        place = {id(p): number for number, p in enumerate(replica.parameters)}
        self.homes: list[list[ShardStore]] = []  # [worker][shard]
        self.which: list[list[int]] = []  # [shard] -> places of its parameters in the module
        self.rooms = VersionSlots(workers)
        self.states = [[0] * self.rooms.ints for _ in setup.layout.shards]
        columns, schedule, rule = [], setup.job.schedule, setup.plan.rule
        for layout, state in zip(setup.layout.shards, self.states, strict=True):
            mine = [named[p.name] for p in layout.parameters]
            self.which.append([place[id(p)] for p in mine])
            twin = optimizer_over(optimizer, {p: p for p in mine})
            shape = version_shape(layout, setup.layout.dtype, mine, twin, rule, setup.probe.tables)
            self.rooms.init(state)
            rooms = [ShardVersion(shape, torch.zeros(shape.size, dtype=torch.uint8)) for _ in range(self.rooms.count)]
            for room in rooms:
                buffers = [b.to(setup.layout.dtype) for b in replica.moving] if layout.buffers else []
                room.start(mine, buffers, rule)
            ints = torch.zeros(Journal.size(shape.heights, len(rooms)), dtype=torch.int64)
            journal = Journal(shape.heights, len(rooms), ints)
            columns.append(
                [
                    shard_store(mine, optimizer_over(twin, {p: p for p in mine}), schedule, rooms, journal)
                    for _ in range(workers)
                ]
            )
        self.homes = [list(row) for row in zip(*columns, strict=True)]
        self.buffers = [[b.clone() for b in replica.moving] for _ in range(workers)]
        self.newest_buffers = [b.clone() for b in replica.moving]
        self.gradients: list[Sequence[Tensor | None]] = [()] * workers
        self.encoders = make_encoders(setup, replica.parameters)

    def go_on(self, before: Apart) -> None:
        """Begin where an earlier life ended: everybody holds the newest version of every shard."""
        for shard, home in enumerate(self.homes[0]):
            for room in home.rooms:
                room.raw.copy_(before.newest(shard).raw)
        self.learner.set_buffers(
            [b.to(self.setup.layout.dtype) for b in before.newest_buffers]
        )  # as the shard keeps it
        self.newest_buffers = [b.clone() for b in self.learner.replica.moving]
        self.buffers = [[b.clone() for b in self.newest_buffers] for _ in self.buffers]

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        """The gradient of a whole batch, from what this worker holds."""
        for home, state in zip(self.homes[worker], self.states, strict=True):
            home.look(self.rooms.of(state, worker))
        self.learner.set_buffers(self.buffers[worker])
        computed = self.encoders[worker].sent(self.learner.compute(chunks))
        self.gradients[worker] = self.learner.settle(computed)
        self.buffers[worker] = [b.clone() for b in self.learner.replica.moving]
        return computed

    def push(self, event: Push, version: int) -> int:
        """Make this version of the shard, and let the worker hold it; the bytes that travelled."""
        worker, shard = event.worker, event.shard
        pulled = self.homes[worker][shard].pulled(self.setup.plan.rule)
        arrival = Arrival([self.gradients[worker][n] for n in self.which[shard]], pulled)
        self._make(worker, shard, version, arrival)
        if shard == 0:
            self.newest_buffers = self.buffers[worker]
        return self.homes[worker][shard].bytes

    def _make(self, worker: int, shard: int, version: int, arrival: Arrival) -> None:
        home = self.homes[worker][shard]
        home.updates = version - 1
        home.move(*self.rooms.move(self.states[shard], worker))
        self.setup.plan.rule.update(home, arrival)

    def newest(self, shard: int) -> ShardVersion:
        return self.homes[0][shard].rooms[self.rooms.newest(self.states[shard])]

    def values(self) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for shard, which in enumerate(self.which):
            found.update(zip(which, (v.clone() for v in self.newest(shard).parameters), strict=True))
        dtype = self.setup.layout.dtype  # as the shard keeps them
        return [found[n] for n in range(len(found))] + [b.to(dtype) for b in self.newest_buffers]


class Gathered(Apart):
    """Each worker holds a version; enough gradients computed from the newest one together make the next."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        length, layout, self.needed = Payload.length(setup.layout), setup.layout, setup.plan.gathers
        self.slots = GatherBuffers(layout, [torch.zeros(length, dtype=layout.dtype) for _ in range(self.needed)])
        self.round: list[tuple[int, int]] = []  # (batch, slot)
        self.computed: dict[int, GradientSum] = {}

    def pull(self, worker: int) -> None:
        self.homes[worker][0].fetch(*self.rooms.fetch(self.states[0], worker))
        self.buffers[worker] = self.newest_buffers

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        """The gradient of a share of a batch, from what this worker holds."""
        self.homes[worker][0].look(self.rooms.of(self.states[0], worker))
        self.learner.set_buffers(self.buffers[worker])
        self.computed[worker] = self.encoders[worker].sent(self.learner.compute(chunks))
        return self.computed[worker]

    def push(self, event: Push, version: int) -> int:
        """Hold it for this version; make the version when the round is full."""
        slot = len(self.round)
        self.slots.write(slot, self.computed[event.worker])
        self.round.append((event.batch, slot))
        if len(self.round) == self.needed:
            whole = self.slots.add_up([slot for _, slot in sorted(self.round)])
            self._make(event.worker, 0, version, Arrival(self.learner.settle(whole, alone=True)))
            self.newest_buffers = [b.clone() for b in self.learner.replica.moving]
            self.round.clear()
        return self.homes[event.worker][0].bytes


class Unlocked(Snapshots):
    """Hogwild in virtual time: one set of values for all, which every worker's own optimizer changes. A write is whole
    here; real ones may tear.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, workers = setup, [], setup.plan.workers
        self.learner, optimizer = make_learner(setup)
        parameters = self.learner.replica.parameters
        same = {p: p for p in parameters}
        self.homes = [
            LocalStore(parameters, optimizer_over(optimizer, same), setup.job.schedule, setup.plan.rule)
            for _ in range(workers)
        ]
        self.gradients: list[list[Tensor | None]] = [[] for _ in range(workers)]
        self.encoders = make_encoders(setup, parameters)

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        computed = self.encoders[worker].sent(self.learner.compute(chunks))
        self.homes[worker].updates = chunks[0].update
        self.gradients[worker] = self.learner.settle(computed)
        return computed

    def push(self, event: Push, version: int) -> None:
        self.setup.plan.rule.update(self.homes[event.worker], Arrival(self.gradients[event.worker]))

    def values(self) -> list[Tensor]:
        return [value.clone() for value in self.learner.replica.values()]


class Commuting(Snapshots):
    """Each worker steps a replica of its own; one at a time they go to the centre."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, workers = setup, [], setup.plan.workers
        rule, (layout,) = setup.plan.exchanging, setup.layout.shards
        assert rule is not None
        self.exchanging_replicas = []
        for _ in range(workers):
            learner, optimizer = make_learner(setup)
            self.exchanging_replicas.append(ExchangingReplica(learner, optimizer, rule))
        replica = self.exchanging_replicas[0].learner.replica
        shape = version_shape(layout, setup.layout.dtype, replica.parameters, None, rule)
        self.centre = ShardVersion(shape, torch.zeros(shape.size, dtype=torch.uint8))
        self.centre.start(replica.parameters, [b.to(setup.layout.dtype) for b in replica.moving], rule)

    def go_on(self, before: Commuting) -> None:
        """Begin where an earlier life ended: each worker as it left the centre, and new ones at the centre."""
        self.centre.raw.copy_(before.centre.raw)
        for number, exchanging in enumerate(self.exchanging_replicas):
            if number < len(before.exchanging_replicas):
                exchanging.restore(before.exchanging_replicas[number].worker_state())
            else:
                exchanging.join(self.centre)

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        """One local step."""
        exchanging = self.exchanging_replicas[worker]
        if self.setup.agenda.begins(chunks[0].update):
            exchanging.begin()
        computed = exchanging.learner.compute(chunks)
        exchanging.step(chunks[0].update, computed)
        return computed

    def push(self, event: Push, version: int) -> None:
        self.exchanging_replicas[event.worker].exchange(self.centre)

    def newest(self, shard: int) -> ShardVersion:
        return self.centre

    def values(self) -> list[Tensor]:
        return [v.clone() for v in (*self.centre.parameters, *self.centre.buffers)]


class Paired(Snapshots):
    """Every worker has a replica that the others reach; whoever has a gradient ready meets one of them."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, workers = setup, [], setup.plan.workers
        rule, (layout,) = setup.plan.pairing, setup.layout.shards
        assert rule is not None
        self.rule, self.replicas = rule, Replicas(workers)
        self.state = [0] * self.replicas.ints
        self.replicas.init(self.state)
        replica = make_learner(setup)[0].replica
        shape = version_shape(layout, setup.layout.dtype, replica.parameters, None, setup.plan.rule)
        self.rooms = [
            ShardVersion(shape, torch.zeros(shape.size, dtype=torch.uint8)) for _ in range(self.replicas.count)
        ]
        for room in self.rooms:
            room.start(replica.parameters, [b.to(setup.layout.dtype) for b in replica.moving], setup.plan.rule)
        self.peers = []
        for worker in range(workers):
            learner, optimizer = make_learner(setup)
            home = LocalStore(learner.replica.parameters, optimizer, setup.job.schedule, setup.plan.rule)
            self.peers.append(GossipReplica(learner, home, rule, self.rooms))
            self.peers[worker].look(self.replicas.of(self.state, worker))
        self.gradients: list[list[Tensor | None]] = [[] for _ in range(workers)]
        self.last = 0

    def go_on(self, before: Paired) -> None:
        """Begin where an earlier life ended: each at its own replica; all at their mean, where there are others now."""
        newest = [before.rooms[before.replicas.newest(before.state, r)].values for r in range(len(before.peers))]
        for number, room in enumerate(self.rooms):
            room.values.copy_(self.rule.go_on(newest, number // 3, len(self.peers)))
        for number, peer in enumerate(self.peers):
            peer.learner.set_buffers(self.rooms[self.replicas.of(self.state, number)].buffers)
            if number < len(before.peers):
                peer.restore(before.peers[number].worker_state())

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        learner = self.peers[worker].learner
        computed = learner.compute(chunks)
        self.gradients[worker] = learner.settle(computed)
        return computed

    def push(self, event: Push, version: int) -> None:
        setup, worker = self.setup, event.worker
        partner = self.rule.partner(worker, setup.plan.workers, setup.job.seed, event.batch)
        theirs = None if partner is None else self.replicas.change(self.state, partner)
        self.peers[worker].step(version, self.gradients[worker], self.replicas.move(self.state, worker), theirs)
        self.last = worker

    def newest(self, shard: int) -> ShardVersion:
        return self.rooms[self.replicas.newest(self.state, self.last)]

    def values(self) -> list[Tensor]:
        rooms = [self.rooms[self.replicas.newest(self.state, r)] for r in range(self.setup.plan.workers)]
        return middle([[v.clone() for v in (*room.parameters, *room.buffers)] for room in rooms])


Server = Apart | Commuting | Paired | Unlocked


def by_shards(setup: Setup) -> Server:
    """The arithmetic of a plan with a server."""
    if not setup.plan.locked:
        return Unlocked(setup)
    if setup.plan.gathers:
        return Gathered(setup)
    if setup.plan.pairing is not None:
        return Paired(setup)
    return Apart(setup) if setup.plan.exchanging is None else Commuting(setup)
