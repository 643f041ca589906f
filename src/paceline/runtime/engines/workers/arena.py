"""The memory that the parent and its workers share. Both build it by the same steps, so they agree on every offset.

    control     abort, go, checkpoints | per worker: its update, when it finished, its doorbell, its offers
    traces      a ring of rows per worker
    desk        the desk's integers, twice
    per shard   the shard's integers, twice | versions: parameters and optimizer state, one per worker and a spare |
                journal: which rows of embedding tables the last versions touched
    payloads    what collectives add up: two per worker, used alternately
    parts       what workers with parts of one layer send each other: two per worker, used alternately
    slots       gradients that a shard gathers: one per worker and one per gradient of a round
    numbers     one number per worker: the parts of a coordinator's products, or of a pipeline's gradient norm
    mail        messages between two neighbouring stages of a pipeline, or between two workers with operators, each way
    results     parameters and buffers of workers that trained a replica of their own

A step on a shard is all or nothing under SIGKILL: the next version is made in a slot that no worker reads, and one
store, which flips the integers, makes it the newest.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor, nn

from paceline.algorithms.collectives.canonical import lanes_of, spare_lanes
from paceline.algorithms.server.desk import Desk
from paceline.kernels.exchange import stream_copy, stream_tensor
from paceline.plans.methods import Server
from paceline.plans.methods.split_layers import DATA
from paceline.plans.plan import Plan, program_of
from paceline.runtime.engines.checkpoints import Checkpoint
from paceline.runtime.engines.servers.ports import put_version_0, restore
from paceline.runtime.engines.servers.shard_memory import DeskMemory, ShardMemory, newest_values
from paceline.runtime.engines.workers.worker_context import REQUESTED, WorkerMemory
from paceline.runtime.links import Link, waiting
from paceline.runtime.links.membership import Locks, RecordLock
from paceline.runtime.links.memory import Memory, require_store_order
from paceline.runtime.links.shared_memory import MailShape, MailSlots, SharedMemoryLink, SharedVectors
from paceline.runtime.links.waiting import Doorbell, Waiter
from paceline.runtime.runs.trace import Columns, TraceRing
from paceline.training.gradients.payload import CodedFrame, Payload
from paceline.training.operators.planning import OperatorBlueprint
from paceline.training.parameters.layout import Fragments, Layout
from paceline.training.parameters.replicas import mean_of
from paceline.training.parameters.rows import Journal
from paceline.training.parameters.shard_version import ShardVersion, VersionShape
from paceline.training.stages.cutting import Blueprint


class Channels(NamedTuple):
    """What workers exchange that hold parts of a model; by default, what those exchange that hold all of it."""

    mail: tuple[MailShape, ...] = ()
    #: The most bytes that a worker with parts of layers sends in one exchange.
    parts: int = 0
    #: Whether some workers add up gradients of the same parameters.
    sums: bool = True


#: Of workers that hold the whole model.
NO_CHANNELS = Channels()

CONTROL = 4
ABORT, GO = 0, 1
CHECKPOINTS = 2  # the first of the integers of checkpoints: REQUESTED, TAKEN
DESK_LOCK = 0  # shard s has lock s + 1
#: Seconds beyond the deadline for which a worker waits where the others go on without one that is stopped. The parent
#: ends that one at the deadline: a worker that waits for it, as for its lock, must not fail the run before.
GRACE = 5.0


@dataclass(frozen=True)
class ArenaShape:
    """The sizes of everything in an arena."""

    workers: int
    layout: Layout
    #: Workers whose replicas make the result.
    results: int
    server: Server | None = None
    desk: Desk | None = None
    #: The contents of every version of each shard.
    versions: tuple[VersionShape, ...] = ()
    #: Leases that were under way when an earlier part of the run ended.
    pending_owners: int = 0
    #: What the desk and the shards call workers: the workers themselves, or replicas of several.
    clients: int = 0
    mail: tuple[MailShape, ...] = ()
    #: Numbers of a payload.
    payload: int = 0
    #: Bytes of a frame under a codec, which then takes the place of a payload.
    frame: int = 0
    #: Parts of the parameters that are exchanged one after another; payload and frame are those of the largest.
    fragments: int = 1
    #: The most bytes that a worker with parts of layers sends in one exchange.
    parts: int = 0

    @staticmethod
    def of(
        plan: Plan,
        layout: Layout,
        leases: int,
        versions: Sequence[VersionShape] = (),
        channels: Channels = NO_CHANNELS,
        pending_owners: int = 0,
    ) -> ArenaShape:
        """Return the shape that a plan needs for these parameters."""
        workers, server, payload, frame, fragments = plan.workers, plan.method.server, 0, 0, 1
        clients = plan.method.mesh(workers).size(DATA) if server is not None else 0
        desk = Desk(clients, leases, server.gate, pending_owners) if server is not None else None
        if server is None and channels.sums and plan.traits.exchanges and plan.traits.traced:
            each = Fragments.of(layout, plan.fragments)
            lanes, paces = lanes_of(program_of(plan).collective, workers) if plan.canonical else 1, 0
            if plan.measured:
                lanes, paces = spare_lanes(plan.canonical), workers
            payload, fragments = max(Payload.room(part, lanes, paces) for part in each.each), len(each)
            frame = CodedFrame.largest(plan.codec, each) if plan.codec else 0
        return ArenaShape(
            workers,
            layout,
            plan.results,
            server,
            desk,
            tuple(versions),
            pending_owners,
            clients,
            channels.mail,
            payload,
            frame,
            fragments,
            channels.parts,
        )

    @property
    def vector(self) -> tuple[int, torch.dtype]:
        """The numbers and the dtype of what a collective exchanges."""
        return (self.frame, torch.uint8) if self.frame else (self.payload, self.layout.dtype)


class Arena:
    """The shared memory of one run, as one process sees it."""

    def __init__(self, shape: ArenaShape, memory: Memory, locks: Locks) -> None:
        self.shape, self.memory, self.locks = shape, memory, locks
        workers = shape.workers
        self.control = memory.ints(CONTROL)
        self.checkpoints = self.control[CHECKPOINTS:CONTROL]
        #: The update or batch that each worker is in; -1 before the first.
        self.doing = memory.ints(workers)
        #: The last update that each worker will make before it looks at what is requested of it; -1 if it always does.
        self.reach = memory.ints(workers)
        #: `perf_counter_ns` when each worker finished; 0 while it trains.
        self.ended = memory.ints(workers)
        self.doorbells = [Doorbell.of(memory) for _ in range(workers)]
        self.traces = [TraceRing(memory.take(TraceRing.size())) for _ in range(workers)]
        self.desk = DeskMemory(shape.desk, DoubleBuffer(memory, shape.desk.ints)) if shape.desk else None
        self.shards = [self._shard(number) for number in range(len(shape.versions))] if shape.desk else []
        #: The vectors that collectives add up: whole payloads or frames, and one number per worker.
        self.payloads, self.numbers = [
            SharedVectors(memory, workers, count, kind) for count, kind in (shape.vector, (1, torch.float64))
        ]
        self.parts = SharedVectors(memory, workers, shape.parts, torch.uint8)
        slot_count = sum(shard.machine.slots for shard in self.shards)
        self.slots = [memory.tensor(Payload.length(shape.layout), shape.layout.dtype) for _ in range(slot_count)]
        #: Per replica of a server whose replicas have several workers: how many batches it was given, the last of them,
        #: whether that was given out before, and whether it was the last. Per worker: how many it has pushed.
        self.leases, self.pushed = memory.ints(4 * shape.clients), memory.ints(workers)
        self.mail = {(mail.line, mail.channel): MailSlots(memory, mail) for mail in shape.mail}
        self.results = [memory.tensor(shape.layout.numbers, shape.layout.dtype) for _ in range(shape.results)]

    def of_worker(self, number: int) -> WorkerMemory:
        """Return what one worker shares with its parent alone."""
        result = self.results[number] if number < len(self.results) else None
        return WorkerMemory(
            self.traces[number],
            self.doing[number : number + 1],
            self.reach[number : number + 1],
            self.checkpoints,
            self.control[ABORT : ABORT + 1],
            result,
        )

    def waiter(self, number: int, cancelled: Callable[[], bool], deadline: float, threads: int) -> Waiter:
        """Return how a worker waits, which computes with so many threads."""
        crowded = self.shape.workers * threads > len(os.sched_getaffinity(0))
        doorbell, doing = self.doorbells[number], self.doing
        deadline += GRACE if self.desk is not None else 0.0
        return Waiter(number, doorbell, cancelled, deadline, lambda: f"in update {doing[number]}", crowded)

    def lock(self, number: int, waiter: Waiter, what: str, shared: bool = False) -> RecordLock:
        """Return a lock of the arena that a worker waits for by its own waiter."""
        return RecordLock(self.locks, number, waiter, what, shared)

    def link(self, vectors: SharedVectors, number: int, waiter: Waiter, changes: bool = False) -> Link:
        """Return one worker's end of a link to all others.

        Where a worker `changes` its vector in the course of a collective, it does so in memory of its own.
        """
        return SharedMemoryLink(vectors, number, self.doorbells, waiter, stream_copy() if changes else None)

    def drain(self) -> list[Columns]:
        """Take the rows that each worker has written since the last call."""
        return [ring.drain() for ring in self.traces]

    def asleep(self, worker: int) -> bool:
        """Whether a worker sleeps until another one rings."""
        return self.doorbells[worker].asleep

    def offers(self, worker: int) -> int:
        """Return the parts of vectors that a worker has offered to one peer: how far it is in its collectives."""
        # Not the sum over all peers: the root of a tree offers more than a leaf, and would seem to be ahead of it.
        vectors = (self.payloads, self.numbers, self.parts)
        return sum(max(each.counters[worker]) for each in vectors)

    def put_version_0(self, module: nn.Module, remembered: Mapping[Tensor, dict[str, Any]]) -> None:
        """Write what every worker starts from into every version of every shard, with the optimizer's state."""
        assert self.shape.server is not None
        put_version_0(self.shards, self.shape.layout, module, self.shape.server, remembered)

    def resume(self, begin: Checkpoint) -> None:
        """Give every worker the newest version of each shard; batches that were under way are leased again."""
        assert begin.cut is not None
        assert self.shape.server is not None
        assert self.desk is not None
        states = [shard.integers.current for shard in self.shards]
        begin.cut.restore(self.desk.desk, self.desk.integers.current, self.shards[0].machine, states)
        replicas = [mine for name, mine in begin.holders.items() if name.startswith("replica")]
        for number, memory in enumerate(self.shards):
            restore(memory, self.shape.server, replicas or [begin.holders[f"shard.{number}"]])

    def values(self, names: Sequence[str]) -> list[Tensor]:
        """Return the trained tensors of these names, when every worker has finished."""
        collect = self.shape.layout.collect
        flats = newest_values(self.shards) if self.shards else [[result] for result in self.results]
        means = mean_of([collect(each, names) for each in flats])
        return [value.clone() for value in means]

    def result_views(self) -> dict[str, Tensor]:
        """Return the result by names, where several workers write what each holds of the model."""
        (shard,), (result,) = self.shape.layout.shards, self.results
        spans = (*shard.parameters, *shard.buffers)
        views = (*shard.parameter_views(result), *shard.buffer_views(result))
        return {span.name: view for span, view in zip(spans, views, strict=True)}

    def remembered(self, named: dict[str, nn.Parameter]) -> dict[Tensor, dict[str, Any]]:
        """Return the state that the optimizer at the shards keeps for these parameters."""
        memories: dict[Tensor, dict[str, Any]] = {}
        for layout, memory in zip(self.shape.layout.shards, self.shards, strict=True):
            state = memory.newest.state
            for number, present in enumerate(state.present.tolist()):
                if present:
                    copies = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.recall(number).items()}
                    memories[named[layout.parameters[number].name]] = copies
        return memories

    def close(self) -> None:
        """Close every descriptor. The memory is freed with the last tensor that views it."""
        os.close(self.locks.descriptor)
        self.memory.close()

    def _shard(self, number: int) -> ShardMemory:
        """Lay out the memory of one shard."""
        memory, shape, server = self.memory, self.shape.versions[number], self.shape.server
        assert server is not None
        machine = server.machine(self.shape.clients, self.shape.pending_owners)
        slots = server.slots(self.shape.clients, at=machine.ints)
        integers = DoubleBuffer(memory, machine.ints + slots.ints)
        versions = [ShardVersion(shape, memory.tensor(shape.size, torch.uint8)) for _ in range(slots.count)]
        heights, count = shape.heights, slots.count
        journal = Journal(heights, count, memory.tensor(Journal.size(heights, count), torch.int64))
        return ShardMemory(machine, slots, integers, versions, journal, stream_tensor)

    @staticmethod
    def create(shape: ArenaShape) -> Arena:
        """Allocate an arena and initialise its state."""
        require_store_order("the local engine")
        arena = Arena(shape, Memory(_size(shape)), Locks())
        if arena.desk is not None:
            arena.desk.desk.init(arena.desk.integers.current)
        for shard in arena.shards:
            shard.init()
        for worker in range(shape.workers):
            arena.doing[worker] = arena.reach[worker] = -1
        arena.checkpoints[REQUESTED] = -1
        return arena

    def __reduce__(self) -> tuple[object, ...]:
        # The shape holds the gate, which may be a class of a script: it travels by value.
        return _arena, (cloudpickle.dumps(self.shape), self.memory, self.locks)


def _arena(shape: bytes, memory: Memory, locks: Locks) -> Arena:
    return Arena(pickle.loads(shape), memory, locks)


def _size(shape: ArenaShape) -> int:
    """Return an upper bound of the bytes that `Arena` takes."""
    number, workers = shape.layout.bytes_per_number, shape.workers
    size = workers * (TraceRing.size() + 64 * 8) + 16 * workers * 4
    if shape.desk and shape.server:
        size += 2 * 8 * shape.desk.ints
        machine, slots = shape.server.machine(shape.clients, shape.pending_owners), shape.server.slots(shape.clients)
        for version in shape.versions:
            size += slots.count * (version.size + 64)
            size += 2 * 8 * (machine.ints + slots.ints + 8) + 64 * 4
            size += 8 * Journal.size(version.heights, slots.count) + 64
        if machine.slots:
            size += machine.slots * (Payload.length(shape.layout) * number + 64)
    size += shape.results * (shape.layout.bytes + 64)
    size += sum(mail.size for mail in shape.mail)
    size += SharedVectors.size(workers, *shape.vector)
    size += SharedVectors.size(workers, 1, torch.float64) + SharedVectors.size(workers, shape.parts, torch.uint8)
    return size + 64 * 1024


# Integers in shared memory that change all at once or not at all, even if the process that changes them is killed.


class DoubleBuffer:
    """Integers that are kept twice: `begin` returns a copy to change, and `commit` makes it the valid one.

    Every method is called under the lock that guards the integers. The commit is one aligned store of eight bytes, so
    a process that is killed before it has changed nothing.
    """

    def __init__(self, memory: Memory, count: int) -> None:
        #: Which of the two copies is valid: 0 or 1.
        self._flip = memory.ints(1)
        self._copies = (memory.ints(count), memory.ints(count))

    @property
    def addresses(self) -> tuple[int, int, int]:
        """The addresses of the integer that says which copy is valid, and of both copies, for generated code."""
        return waiting.address_of(self._flip), waiting.address_of(self._copies[0]), waiting.address_of(self._copies[1])

    @property
    def current(self) -> memoryview:
        """The valid copy."""
        return self._copies[self._flip[0]]

    def begin(self) -> memoryview:
        """Return the other copy, filled from the valid one."""
        valid = self._flip[0]
        draft = self._copies[1 - valid]
        # The whole copy: an owner that was killed may have left anything in it.
        draft[:] = self._copies[valid]
        return draft

    def commit(self) -> None:
        """Make the other copy the valid one."""
        self._flip[0] = 1 - self._flip[0]


# The channels between workers: of neighbouring stages of a pipeline, or each way between any two with operators.

MESSAGES = 64  # slots of a mailbox between two workers with operators; what finds it full waits with its sender


def mail_of(blueprint: Blueprint, lines: int = 1) -> Iterator[MailShape]:
    """Yield the mailboxes between each two neighbouring stages of different workers, one each way.

    There are as many lines of workers as the pipeline has replicas times workers inside a stage.
    """
    holders = blueprint.stage_to_worker
    for line in range(lines):
        for stage, (source, target) in enumerate(itertools.pairwise(holders)):
            if source != target:
                slots, count = blueprint.slots, len(blueprint.needs[stage + 1])
                on, back = (stage, stage + 1), (stage + 1, stage)
                yield MailShape(on, count + blueprint.carries_chance, blueprint.bytes_on[stage], slots, line)
                yield MailShape(back, count, blueprint.bytes_back[stage], slots, line)


def mail_between(blueprint: OperatorBlueprint, workers: int) -> Iterator[MailShape]:
    """Yield the mailboxes from each worker with operators to each other one."""
    for ends in itertools.permutations(range(workers), 2):
        yield MailShape(ends, 1 + blueprint.tensors, blueprint.bytes, MESSAGES)
