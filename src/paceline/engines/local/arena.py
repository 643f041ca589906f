"""The memory that the parent and its workers share. Both build it by the same steps, so they agree on every place.

    control     abort, go, wanted, taken | per worker: what it does now, when it ended, its doorbell, its offers
    traces      a ring of rows per worker
    desk        the desk's integers, twice
    per shard   the shard's integers twice | rooms: parameters and optimizer state, one per worker and a spare |
                journal: which rows of embedding tables the last versions touched
    payloads    of a collective: two per worker, used in turn
    slots       of a shard that gathers: one per worker and per place in a round
    numbers     the same, of one number: what a programme's products, or the norm of a pipeline's gradient, add up to
    mail        of a pipeline: what lies ready between two neighbouring stages, each way
    results     parameters and buffers of workers that trained a replica of their own

A step on a shard is all or nothing under SIGKILL: the next version is made in a room that nobody looks at, and one
store, which flips the integers, makes it the newest.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from paceline.core.collectives import Shards
from paceline.core.rules import Exchanging, Rule
from paceline.core.rules.ad_psgd import AdPsgd
from paceline.core.server.gathering import Gathering
from paceline.core.server.machines import Desk, Shard
from paceline.core.server.version_slots import Replicas, VersionSlots
from paceline.engines.checkpoints import Checkpoint
from paceline.engines.local.channels import mail_of
from paceline.gradients.payload import Payload
from paceline.links.doorbell import Doorbell
from paceline.links.double_buffer import DoubleBuffer
from paceline.links.locks import Locks
from paceline.links.mailbox import MailShape, MailSlots
from paceline.links.memory import Memory
from paceline.parameters.layout import Layout
from paceline.parameters.replicas import middle
from paceline.parameters.rows import Journal
from paceline.parameters.store import Optimizer, ShardVersion, VersionShape, optimizer_over, version_shape
from paceline.plans.plan import Plan
from paceline.runs.trace import TraceRing
from paceline.stages.segment import Blueprint

CONTROL = 4
ABORT, GO = 0, 1
WANTED, TAKEN = 2, 3  # the update after which a checkpoint is asked for; the newest that the parent has taken
DESK_LOCK = 0  # shard s has lock s + 1


@dataclass(frozen=True)
class ArenaShape:
    workers: int
    layout: Layout
    kind: str  # "alone", "collective", "pipeline" or "shards"
    desk: Desk | None
    place: Shards
    rooms: tuple[VersionShape, ...]  # per shard
    places: type[VersionSlots] | type[Replicas]  # which room is whose
    results: int  # workers whose replicas make the result
    ghosts: int = 0  # leases that were under way when an earlier life of the run ended
    mail: tuple[MailShape, ...] = ()

    @staticmethod
    def of(
        plan: Plan,
        layout: Layout,
        leases: int,
        named: dict[str, nn.Parameter],
        optimizer: Optimizer,
        tables: Sequence[str],
        ghosts: int = 0,
        blueprint: Blueprint | None = None,
    ) -> ArenaShape:
        """What a plan needs for these parameters."""
        if blueprint is not None:
            mail = tuple(mail_of(blueprint))
            return ArenaShape(plan.workers, layout, "pipeline", None, Shards(), (), VersionSlots, 1, 0, mail)
        if plan.gate is None:
            kind = "alone" if plan.meeting is None else "collective"
            return ArenaShape(plan.workers, layout, kind, None, Shards(), (), VersionSlots, plan.results)
        rule = plan.exchanging or plan.rule
        rooms = []
        for shard in layout.shards:
            mine = [named[place.name] for place in shard.parameters]
            twin = optimizer_over(optimizer, {p: p for p in mine}) if plan.steps_at_shards else None
            rooms.append(version_shape(shard, layout.dtype, mine, twin, rule, tables))
        desk = Desk(plan.workers, leases, plan.gate, ghosts)
        assert isinstance(plan.meeting, Shards)
        places = VersionSlots if plan.pairing is None else Replicas
        return ArenaShape(plan.workers, layout, "shards", desk, plan.meeting, tuple(rooms), places, 0, ghosts)


@dataclass
class ShardMemory:
    """The machine's integers and the rooms' lie in the same twin, so one store commits both."""

    machine: Shard | Gathering
    places: VersionSlots | Replicas
    twin: DoubleBuffer
    rooms: list[ShardVersion]
    journal: Journal

    @property
    def newest(self) -> ShardVersion:
        return self.rooms[self.places.newest(self.twin.current)]

    @property
    def all_newest(self) -> list[ShardVersion]:
        """Of every replica, where each worker has one."""
        assert isinstance(self.places, Replicas)
        return [self.rooms[self.places.newest(self.twin.current, r)] for r in range(self.places.workers)]


class Arena:
    def __init__(self, shape: ArenaShape, memory: Memory, locks: Locks) -> None:
        self.shape, self.memory, self.locks = shape, memory, locks
        workers = shape.workers
        self.control = memory.ints(CONTROL)
        self.doing = memory.ints(workers)  # update or batch, -1 before the first
        self.ended = memory.ints(workers)  # perf_counter_ns when it went home
        self.doorbells = [Doorbell.of(memory) for _ in range(workers)]
        self.offers = [memory.ints(1) for _ in range(workers)]
        self.traces = [TraceRing(memory.take(TraceRing.size())) for _ in range(workers)]
        self.desk = DoubleBuffer(memory, shape.desk.ints) if shape.desk else None
        self.shards = [self._shard(number) for number in range(len(shape.layout.shards))] if shape.desk else []
        length = Payload.length(shape.layout) if shape.kind == "collective" else 0
        self.payloads = [[memory.tensor(length, shape.layout.dtype) for _ in range(2)] for _ in range(workers)]
        held = [shard.machine.slots for shard in self.shards if isinstance(shard.machine, Gathering)]
        length = Payload.length(shape.layout) if held else 0
        self.slots = [memory.tensor(length, shape.layout.dtype) for _ in range(sum(held))]
        count = 1 if shape.kind in ("collective", "pipeline") else 0
        self.numbers = [[memory.tensor(count, torch.float64) for _ in range(2)] for _ in range(workers)]
        self.mail = {mail.channel: MailSlots(memory, mail) for mail in shape.mail}
        self.results = [memory.tensor(shape.layout.numbers, shape.layout.dtype) for _ in range(shape.results)]

    def put_version_0(
        self, module: nn.Module, rule: Rule | Exchanging, remembered: Mapping[Tensor, dict[str, Any]]
    ) -> None:
        """What every worker starts from, into every room of every shard; and what the optimizer already remembers."""
        named = dict(module.named_parameters()) | dict(module.named_buffers())
        for layout, memory in zip(self.shape.layout.shards, self.shards, strict=True):
            parameters, buffers = [named[p.name] for p in layout.parameters], [named[p.name] for p in layout.buffers]
            for room in memory.rooms:
                room.start(parameters, buffers, rule)
                for number, parameter in enumerate(parameters if room.shape.remembers else ()):
                    if parameter in remembered:
                        room.state.keep(number, remembered[parameter])

    def copy_into(self, begin: Checkpoint, pairing: AdPsgd | None) -> None:
        """Every worker holds the newest version of each shard, and what was under way is handed out again."""
        assert begin.cut is not None
        assert self.shape.desk is not None
        assert self.desk is not None
        machine, states = self.shards[0].machine, [shard.twin.current for shard in self.shards]
        begin.cut.go_on(self.shape.desk, self.desk.current, machine, states)
        if pairing is not None:
            flats = [mine.tensors["values"] for name, mine in begin.holders.items() if name.startswith("replica")]
            for number, room in enumerate(self.shards[0].rooms):
                room.values.copy_(pairing.go_on(flats, number // 3, self.shape.workers))
            return
        for number, memory in enumerate(self.shards):
            for room in memory.rooms:
                room.restore(begin.holders[f"shard.{number}"])

    def values(self, names: Sequence[str]) -> list[Tensor]:
        """What the training has made of the tensors so called, when everybody is home."""
        collect = self.shape.layout.collect
        if not self.shards:
            found = middle([collect([result], names) for result in self.results])
        elif self.shape.places is Replicas:
            found = middle([collect([room.values], names) for room in self.shards[0].all_newest])
        else:
            found = collect([memory.newest.values for memory in self.shards], names)
        return [value.clone() for value in found]

    def remembered(self, named: dict[str, nn.Parameter]) -> dict[Tensor, dict[str, Any]]:
        """What the optimizer at the shards remembers of these parameters, in its own words."""
        found: dict[Tensor, dict[str, Any]] = {}
        for layout, memory in zip(self.shape.layout.shards, self.shards, strict=True):
            state = memory.newest.state
            for number, present in enumerate(state.present.tolist()):
                if present:
                    copies = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.recall(number).items()}
                    found[named[layout.parameters[number].name]] = copies
        return found

    def close(self) -> None:
        """Let go of every descriptor. The memory goes with the last tensor that looks at it."""
        os.close(self.locks.descriptor)
        self.memory.close()

    def _shard(self, number: int) -> ShardMemory:
        memory, workers = self.memory, self.shape.workers
        machine = self.shape.place.machine(workers, self.shape.ghosts)
        places = self.shape.places(workers, at=machine.ints)
        twin = DoubleBuffer(memory, machine.ints + places.ints)
        shape = self.shape.rooms[number]
        rooms = [ShardVersion(shape, memory.tensor(shape.size, torch.uint8)) for _ in range(places.count)]
        heights, count = shape.heights, places.count
        journal = Journal(heights, count, memory.tensor(Journal.size(heights, count), torch.int64))
        return ShardMemory(machine, places, twin, rooms, journal)

    @staticmethod
    def create(shape: ArenaShape) -> Arena:
        arena = Arena(shape, Memory(_size(shape)), Locks())
        if shape.desk and arena.desk:
            shape.desk.init(arena.desk.current)
        for shard in arena.shards:
            shard.machine.init(shard.twin.current)
            shard.places.init(shard.twin.current)
        for worker in range(shape.workers):
            arena.doing[worker] = -1
        arena.control[WANTED] = -1
        return arena

    def __reduce__(self) -> tuple[object, ...]:
        # The shape holds the gate, which may be a class of the user's own script: it travels by value.
        return _arena, (cloudpickle.dumps(self.shape), self.memory, self.locks)


def _arena(shape: bytes, memory: Memory, locks: Locks) -> Arena:
    return Arena(pickle.loads(shape), memory, locks)


def _size(shape: ArenaShape) -> int:
    """An upper bound of what `Arena` takes."""
    number, workers = shape.layout.bytes_per_number, shape.workers
    size = workers * (TraceRing.size() + 64 * 8) + 16 * workers * 4
    if shape.desk:
        size += 2 * 8 * shape.desk.ints
        places = shape.places(workers)
        for room in shape.rooms:
            size += places.count * (room.size + 64)
            size += 2 * 8 * (shape.place.machine(workers, shape.ghosts).ints + places.ints + 8) + 64 * 4
            size += 8 * Journal.size(room.heights, places.count) + 64
        if shape.place.gathers:
            size += (workers + shape.place.gathers) * (Payload.length(shape.layout) * number + 64)
    size += shape.results * (shape.layout.bytes + 64)
    size += 2 * workers * 64 + sum(mail.size for mail in shape.mail)
    if shape.kind == "collective":
        size += 2 * workers * (Payload.length(shape.layout) * number + 64 + 64)
    return size + 64 * 1024
