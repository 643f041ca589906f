"""Everybody's arithmetic in one process: what the virtual engine computes and what a replay computes again.

One module serves all workers in turn. The operations, their order and the layout of memory are those of the local
engine, so the bits are too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.compute.autograd import Replica
from paceline.compute.averaging import Commuter, Peer, Wanderer, middle, mix
from paceline.compute.commanded import Hand, Obedience
from paceline.compute.home import (
    ReplicaHome,
    Room,
    ShardHome,
    optimizer_over,
    room_shape,
)
from paceline.compute.learner import Learner
from paceline.compute.payload import Computed, Payload
from paceline.compute.row_home import shard_home
from paceline.compute.rows import Journal
from paceline.compute.sender import Sender
from paceline.compute.slots import Slots
from paceline.core.agenda import Chunk
from paceline.core.events import Push
from paceline.core.meetings import Collective, Part, segment_cuts
from paceline.core.meetings.neighbours import Neighbours
from paceline.core.rooms import Replicas, Rooms
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
        if self.setup.agenda.reaches(updates, self.setup.snapshots_every):
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


def _senders(setup: Setup, parameters: Sequence[Tensor]) -> list[Sender]:
    return [Sender(setup.plan.wire, parameters) for _ in range(setup.plan.workers)]


class Together(_Snapshots):
    """All workers hold the same values: `sequential`, and every collective that adds up gradients."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots = setup, []
        self.learner, optimizer = _learner(setup)
        parameters, rule = self.learner.replica.parameters, setup.plan.rule
        self.home = ReplicaHome(parameters, optimizer, setup.job.schedule, rule)
        self.meeting = _Meeting(setup) if setup.plan.synchronous else None
        self.senders = _senders(setup, parameters)

    def compute(self, worker: int, chunks: list[Chunk]) -> Computed:
        """One worker's share of an update. Each starts from the same buffers."""
        start = [b.clone() for b in self.learner.replica.moving]
        computed = self.senders[worker].sent(self.learner.compute(chunks))
        for buffer, value in zip(self.learner.replica.moving, start, strict=True):
            buffer.copy_(value)
        return computed

    def apply(self, update: int, shares: list[Computed]) -> None:
        """Meet, then let the rule apply the whole batch's gradient."""
        whole = shares[0] if self.meeting is None else self.meeting.sum(shares)
        self.setup.plan.rule.update(self.home, Arrival(self.learner.settle(whole)))

    def values(self) -> list[Tensor]:
        return [value.clone() for value in self.learner.replica.values()]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.learner.replica.parameters)


class Wandering(_Snapshots):
    """Each worker steps a replica of its own; now and then all meet."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots = setup, []
        rule, workers = setup.plan.averaging, setup.plan.workers
        assert rule is not None
        self.rule = rule
        self.meeting, self.wanderers = _Meeting(setup), list[Wanderer]()
        for _ in range(workers):
            learner, optimizer = _learner(setup)
            home = ReplicaHome(learner.replica.parameters, optimizer, setup.job.schedule, rule)
            self.wanderers.append(Wanderer(learner, home, rule))

    def compute(self, worker: int, chunks: list[Chunk]) -> Computed:
        return self.wanderers[worker].learner.compute(chunks)

    def apply(self, update: int, shares: list[Computed]) -> None:
        """Everyone's own step and, where it is due, the meeting."""
        due = self.setup.plan.meets_after(update, self.setup.agenda.updates)
        if due and self.rule.mixes_first:
            self._meet()
        for wanderer, share in zip(self.wanderers, shares, strict=True):
            wanderer.step(share)
        if due and not self.rule.mixes_first:
            self._meet()

    def _meet(self) -> None:
        means = self.meeting.means([wanderer.bring() for wanderer in self.wanderers])
        for wanderer, mean in zip(self.wanderers, means, strict=True):
            wanderer.take(mean)

    def values(self) -> list[Tensor]:
        return middle([w.result() for w in self.wanderers[: self.setup.plan.results]])

    def finite(self) -> bool:
        return all(bool(v.isfinite().all()) for w in self.wanderers for v in w.home.values)


Heard = Callable[[int, int, list[float]], None]


class Commanded(Obedience, _Snapshots):
    """A coordinator commands the workers, each of whom has a replica and a slice of every vector.

    An update's first evaluation is handed in, as under any plan whose workers keep step. `heard` is told of what
    follows: (update, bytes of a meeting, everyone's loss where they computed for it).
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, plan = setup, [], setup.plan
        programme, workers = plan.programme, plan.workers
        assert programme is not None
        hands = [Hand(_learner(setup)[0], setup.layout, programme, worker, workers) for worker in range(workers)]
        super().__init__(programme, hands)
        self.meeting = _Meeting(setup)
        self.numbers = [torch.zeros(1, dtype=torch.float64) for _ in hands]
        self.doing, self.first = 0, list[Computed]()
        self.senders = _senders(setup, hands[0].learner.replica.parameters)
        self.heard: Heard = lambda update, size, losses: None

    def compute(self, worker: int, chunks: list[Chunk]) -> Computed:
        self.hands[worker].rewind()
        return self.senders[worker].sent(self.hands[worker].learner.compute(chunks))

    def apply(self, update: int, shares: list[Computed]) -> None:
        self.doing, self.first = update, shares
        self.update()

    def evaluate(self) -> float:
        shares, self.first = self.first, []
        if not shares:
            mine = [self.setup.agenda.mine(self.doing, worker) for worker in range(len(self.hands))]
            shares = [self.compute(worker, chunks) for worker, chunks in enumerate(mine)]
            self.heard(self.doing, self.meeting.flats[0].nbytes, [share.mean for share in shares])
        together = self.meeting.sum(shares)
        for hand in self.hands:
            hand.settle(together)
        return together.mean

    def total(self, parts: list[float]) -> float:
        for number, part in zip(self.numbers, parts, strict=True):
            number[0] = part
        self._meet(self.numbers)
        return float(self.numbers[0])

    def share(self) -> None:
        for hand, flat in zip(self.hands, self.meeting.flats, strict=True):
            hand.offer(flat)
        self._meet(self.meeting.flats)
        for hand, flat in zip(self.hands, self.meeting.flats, strict=True):
            hand.take(flat)

    def _meet(self, flats: list[Tensor]) -> None:
        execute(self.meeting.collective, flats)  # type: ignore[arg-type]
        self.heard(self.doing, flats[0].nbytes, [])

    def values(self) -> list[Tensor]:
        return [value.clone() for value in (*self.hands[0].parameters, *self.hands[0].buffers)]

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.hands[0].parameters)


InStep = Together | Wandering | Commanded


def in_step(setup: Setup) -> InStep:
    """The arithmetic of a plan whose workers keep step."""
    if setup.plan.programme is not None:
        return Commanded(setup)
    return Together(setup) if setup.plan.averaging is None else Wandering(setup)


class _Meeting:
    """Every worker's payload, and what the plan's table makes of them."""

    def __init__(self, setup: Setup) -> None:
        self.layout, self.collective = setup.layout, setup.plan.meeting
        length = Payload.length(setup.layout)
        self.flats = [torch.zeros(length, dtype=setup.layout.dtype) for _ in range(setup.plan.workers)]
        self.payloads = [Payload(setup.layout, flat) for flat in self.flats]

    def sum(self, shares: list[Computed]) -> Computed:
        self._write(shares)
        execute(self.collective, self.flats)  # type: ignore[arg-type]
        return self.payloads[0].read(sum(share.samples for share in shares))

    def _write(self, shares: list[Computed]) -> None:
        for payload, share in zip(self.payloads, shares, strict=True):
            payload.write(share)

    def means(self, shares: list[Computed]) -> list[Computed]:
        """For each worker, the mean of what those it meets have brought."""
        workers = len(shares)
        if not isinstance(self.collective, Neighbours):
            return [self.sum(shares).scaled(1.0 / workers)] * workers
        self._write(shares)
        found = []
        for worker in range(workers):
            mixture = torch.zeros_like(self.flats[worker])
            payload = Payload(self.layout, mixture)
            mix(self.flats, self.collective.weights(worker, workers), mixture)
            found.append(payload.read(shares[worker].samples))
        return found


def execute(meeting: Collective, flats: list[Tensor]) -> None:
    """A collective's table over vectors of one process."""
    workers = len(flats)
    cuts = segment_cuts(len(flats[0]), meeting.segments(workers), flats[0].element_size())

    def piece(part: Part, worker: int) -> Tensor:
        return flats[worker][cuts[part.first] : cuts[part.stop]]

    for row in zip(*(meeting.steps(worker, workers) for worker in range(workers)), strict=True):
        taken = [None if s.receive is None else piece(s.receive, s.receive.other).clone() for s in row]
        for worker, (step, received) in enumerate(zip(row, taken, strict=True)):
            if step.receive is not None and received is not None:
                mine = piece(step.receive, worker)
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
        columns, schedule, rule = [], setup.job.schedule, setup.plan.rule
        for layout, state in zip(setup.layout.shards, self.states, strict=True):
            mine = [named[p.name] for p in layout.parameters]
            self.which.append([place[id(p)] for p in mine])
            twin = optimizer_over(optimizer, {p: p for p in mine})
            shape = room_shape(layout, setup.layout.dtype, mine, twin, rule, setup.probe.tables)
            self.rooms.init(state)
            rooms = [Room(shape, torch.zeros(shape.size, dtype=torch.uint8)) for _ in range(self.rooms.count)]
            for room in rooms:
                buffers = [b.to(setup.layout.dtype) for b in replica.moving] if layout.buffers else []
                room.start(mine, buffers, rule)
            ints = torch.zeros(Journal.size(shape.heights, len(rooms)), dtype=torch.int64)
            journal = Journal(shape.heights, len(rooms), ints)
            columns.append(
                [
                    shard_home(mine, optimizer_over(twin, {p: p for p in mine}), schedule, rooms, journal)
                    for _ in range(workers)
                ]
            )
        self.homes = [list(row) for row in zip(*columns, strict=True)]
        self.buffers = [[b.clone() for b in replica.moving] for _ in range(workers)]
        self.newest_buffers = [b.clone() for b in replica.moving]
        self.gradients: list[Sequence[Tensor | None]] = [()] * workers
        self.senders = _senders(setup, replica.parameters)

    def compute(self, worker: int, chunks: list[Chunk]) -> Computed:
        """The gradient of a whole batch, from what this worker holds."""
        for home, state in zip(self.homes[worker], self.states, strict=True):
            home.look(self.rooms.of(state, worker))
        self.learner.set_buffers(self.buffers[worker])
        computed = self.senders[worker].sent(self.learner.compute(chunks))
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

    def newest(self, shard: int) -> Room:
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
        self.slots = Slots(layout, [torch.zeros(length, dtype=layout.dtype) for _ in range(self.needed)])
        self.round: list[tuple[int, int]] = []  # (batch, slot)
        self.computed: dict[int, Computed] = {}

    def pull(self, worker: int) -> None:
        self.homes[worker][0].fetch(*self.rooms.fetch(self.states[0], worker))
        self.buffers[worker] = self.newest_buffers

    def compute(self, worker: int, chunks: list[Chunk]) -> Computed:
        """The gradient of a share of a batch, from what this worker holds."""
        self.homes[worker][0].look(self.rooms.of(self.states[0], worker))
        self.learner.set_buffers(self.buffers[worker])
        self.computed[worker] = self.senders[worker].sent(self.learner.compute(chunks))
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


class Unlocked(_Snapshots):
    """Hogwild in virtual time: one set of values for all, which every worker's own optimizer changes. A write is whole
    here; real ones may tear.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, workers = setup, [], setup.plan.workers
        self.learner, optimizer = _learner(setup)
        parameters = self.learner.replica.parameters
        same = {p: p for p in parameters}
        self.homes = [
            ReplicaHome(parameters, optimizer_over(optimizer, same), setup.job.schedule, setup.plan.rule)
            for _ in range(workers)
        ]
        self.gradients: list[list[Tensor | None]] = [[] for _ in range(workers)]
        self.senders = _senders(setup, parameters)

    def compute(self, worker: int, chunks: list[Chunk]) -> Computed:
        computed = self.senders[worker].sent(self.learner.compute(chunks))
        self.homes[worker].updates = chunks[0].update
        self.gradients[worker] = self.learner.settle(computed)
        return computed

    def push(self, event: Push, version: int) -> None:
        self.setup.plan.rule.update(self.homes[event.worker], Arrival(self.gradients[event.worker]))

    def values(self) -> list[Tensor]:
        return [value.clone() for value in self.learner.replica.values()]


class Commuting(_Snapshots):
    """Each worker steps a replica of its own; one at a time they go to the centre."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, workers = setup, [], setup.plan.workers
        rule, (layout,) = setup.plan.exchanging, setup.layout.shards
        assert rule is not None
        self.commuters = []
        for _ in range(workers):
            learner, optimizer = _learner(setup)
            home = ReplicaHome(learner.replica.parameters, optimizer, setup.job.schedule, setup.plan.rule)
            self.commuters.append(Commuter(learner, home, rule))
        replica = self.commuters[0].learner.replica
        shape = room_shape(layout, setup.layout.dtype, replica.parameters, None, rule)
        self.centre = Room(shape, torch.zeros(shape.size, dtype=torch.uint8))
        self.centre.start(replica.parameters, [b.to(setup.layout.dtype) for b in replica.moving], rule)

    def compute(self, worker: int, chunks: list[Chunk]) -> Computed:
        """One local step."""
        commuter = self.commuters[worker]
        computed = commuter.learner.compute(chunks)
        commuter.step(chunks[0].update, computed)
        return computed

    def push(self, event: Push, version: int) -> None:
        self.commuters[event.worker].exchange(self.centre)

    def newest(self, shard: int) -> Room:
        return self.centre

    def values(self) -> list[Tensor]:
        return [v.clone() for v in (*self.centre.parameters, *self.centre.buffers)]


class Paired(_Snapshots):
    """Every worker has a replica that the others reach; whoever has a gradient ready meets one of them."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots, workers = setup, [], setup.plan.workers
        rule, (layout,) = setup.plan.pairing, setup.layout.shards
        assert rule is not None
        self.rule, self.replicas = rule, Replicas(workers)
        self.state = [0] * self.replicas.ints
        self.replicas.init(self.state)
        replica = _learner(setup)[0].replica
        shape = room_shape(layout, setup.layout.dtype, replica.parameters, None, setup.plan.rule)
        self.rooms = [Room(shape, torch.zeros(shape.size, dtype=torch.uint8)) for _ in range(self.replicas.count)]
        for room in self.rooms:
            room.start(replica.parameters, [b.to(setup.layout.dtype) for b in replica.moving], setup.plan.rule)
        self.peers = []
        for worker in range(workers):
            learner, optimizer = _learner(setup)
            home = ReplicaHome(learner.replica.parameters, optimizer, setup.job.schedule, setup.plan.rule)
            self.peers.append(Peer(learner, home, rule, self.rooms))
            self.peers[worker].look(self.replicas.of(self.state, worker))
        self.gradients: list[list[Tensor | None]] = [[] for _ in range(workers)]
        self.last = 0

    def compute(self, worker: int, chunks: list[Chunk]) -> Computed:
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

    def newest(self, shard: int) -> Room:
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
