"""The memory that the parent and its workers share. Both build it by the same steps, so they agree on every place.

    control     abort, go | per worker: what it does now, when it ended, asleep, offers of the collective
    traces      a ring of rows per worker
    desk        the desk's integers, twice
    per shard   the shard's integers twice | mark | parameters, optimizer state | per worker a copy of both
    payloads    of a collective: two per worker, used in turn
    results     parameters and buffers of a worker that trained a replica of its own

A step on a shard is all or nothing under SIGKILL. The worker copies the newest values aside, leaves its mark,
changes them in place, and commits by flipping the integers. The mark names the worker and the side of the flip it
started from, so the one store that commits also voids the mark; whoever next takes the lock and finds a valid mark
first takes that step back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.compute.home import ShardTensors, StateMemory, StateShape
from paceline.compute.layout import Layout
from paceline.compute.payload import Payload
from paceline.core.server import Desk, Shard
from paceline.engines.transports.shared_memory import BellDescriptor, Locks, Memory, Twin
from paceline.trace import TraceRing

CONTROL = 2  # abort, go
ABORT, GO = 0, 1
DESK_LOCK = 0  # shard s has lock s + 1


@dataclass(frozen=True)
class ArenaShape:
    workers: int
    layout: Layout
    kind: str  # "alone", "collective" or "shards"
    desk: Desk | None
    states: tuple[tuple[StateShape, ...], ...]  # per shard, per parameter


@dataclass
class ShardMemory:
    machine: Shard
    twin: Twin
    mark: memoryview
    seen_by: list[ShardTensors]  # per worker

    def leave_mark(self, worker: int) -> None:
        self.mark[0] = 2 * (worker + 1) + self.twin.parity

    def heal(self) -> None:
        """To be called by whoever just took the lock: undo the step of a worker that was killed in the middle of it."""
        worker, parity = divmod(self.mark[0], 2)
        if worker and parity == self.twin.parity:
            self.seen_by[worker - 1].restore()
            self.mark[0] = 0


class Arena:
    def __init__(self, shape: ArenaShape, memory: Memory, locks: Locks, bells: list[BellDescriptor]) -> None:
        self.shape, self.memory, self.locks, self.bells = shape, memory, locks, bells
        workers = shape.workers
        self.control = memory.ints(CONTROL)
        self.doing = memory.ints(workers)  # update or batch, -1 before the first
        self.ended = memory.ints(workers)  # perf_counter_ns when it went home
        self.asleep = [memory.ints(1) for _ in range(workers)]
        self.offers = [memory.ints(1) for _ in range(workers)]
        self.traces = [TraceRing(memory.take(TraceRing.size())) for _ in range(workers)]
        self.desk = Twin(memory, shape.desk.ints) if shape.desk else None
        self.shards = [self._shard(number) for number in range(len(shape.layout.shards))] if shape.desk else []
        length = Payload.length(shape.layout) if shape.kind == "collective" else 0
        self.payloads = [[memory.tensor(length, shape.layout.dtype) for _ in range(2)] for _ in range(workers)]
        self.result = memory.tensor(0 if shape.desk else shape.layout.numbers, shape.layout.dtype)

    def _shard(self, number: int) -> ShardMemory:
        memory, workers = self.memory, self.shape.workers
        layout, states = self.shape.layout.shards[number], list(self.shape.states[number])
        machine = Shard(workers)
        twin, mark, size = Twin(memory, machine.ints), memory.ints(1), StateMemory.size(states)
        flats = [memory.tensor(layout.length, self.shape.layout.dtype) for _ in range(1 + workers)]
        memories = [StateMemory(states, memory.tensor(size, torch.uint8)) for _ in range(1 + workers)]
        seen_by = [
            ShardTensors(flats[0], memories[0], flat, undo) for flat, undo in zip(flats[1:], memories[1:], strict=True)
        ]
        return ShardMemory(machine, twin, mark, seen_by)

    @staticmethod
    def create(shape: ArenaShape) -> Arena:
        arena = Arena(shape, Memory(_size(shape)), Locks(), [BellDescriptor() for _ in range(shape.workers)])
        if shape.desk and arena.desk:
            shape.desk.init(arena.desk.current)
        for shard in arena.shards:
            shard.machine.init(shard.twin.current)
        for worker in range(shape.workers):
            arena.doing[worker] = -1
        return arena

    def __reduce__(self) -> tuple[object, ...]:
        return Arena, (self.shape, self.memory, self.locks, self.bells)


def _size(shape: ArenaShape) -> int:
    """An upper bound of what `Arena` takes."""
    number, workers = shape.layout.bytes_per_number, shape.workers
    size = workers * (TraceRing.size() + 64 * 8) + 16 * workers * 4
    if shape.desk:
        size += 2 * 8 * shape.desk.ints
        for layout, states in zip(shape.layout.shards, shape.states, strict=True):
            tensors = layout.length * number + StateMemory.size(list(states)) + 2 * 64
            size += (1 + workers) * tensors + 64 * (workers + 8)
    else:
        size += shape.layout.bytes
    if shape.kind == "collective":
        size += 2 * workers * (Payload.length(shape.layout) * number + 64)
    return size + 64 * 1024
