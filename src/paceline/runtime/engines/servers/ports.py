"""The ports of a plan with a server, by what its pushes bring: a centre, a neighbour, parameters without locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter_ns as now
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.algorithms.rules import Exchanging
from paceline.algorithms.rules.averaging import AdPsgd
from paceline.algorithms.rules.gradients import Plain
from paceline.algorithms.server.messages import Action, Apply, Pull, Push
from paceline.algorithms.server.shard import Shard
from paceline.algorithms.server.version_slots import ReplicaSlots
from paceline.plans.methods import Server
from paceline.plans.plan import server_of
from paceline.runtime.engines.servers.gradient import GatherBuffers, GatheringPort, GradientPort
from paceline.runtime.engines.servers.shard_memory import Locked, ShardMemory, ShardPort, WorkerSide
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.optimizers import Optimizer, optimizer_over
from paceline.training.parameters.replicas import ExchangingReplica, GossipReplica, mean_of
from paceline.training.parameters.shard_version import ShardVersion, VersionShape, version_shape
from paceline.training.parameters.store import restore_store, state_of_store
from paceline.training.parameters.worker_state import WorkerState, copy_into, state_of_tensors

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


# Hogwild: all workers write into the same parameters without a lock; each has its own optimizer state.


class HogwildPort:
    """A port without versions. `guard` keeps writers out while a checkpoint is taken, never each other."""

    base = -1
    optimizer: Optimizer | None = None

    def __init__(self, side: WorkerSide, memory: ShardMemory, guard: AbstractContextManager[object]) -> None:
        self.side, self.memory, self.guard = side, memory, guard
        self.shared, self.moving = memory.newest, side.learner.replica.moving
        for parameter, view in zip(side.learner.replica.parameters, self.shared.parameters, strict=True):
            parameter.data = view
        self.store = side.local_store(Plain())
        self.pushes, self.bytes = 0, 2 * self.shared.values.nbytes

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        if resumed:
            copy_into(self.moving, self.shared.buffers)
        if saved is not None:
            copy_into(self.moving, saved.many("moving"))
            restore_store(self.store, saved)
        self.side.write_state(self.pushes, self.worker_state)

    def begin_part(self) -> None:
        """Do nothing: the data are not divided into parts."""

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        self.store.updates = batch
        return self.side.learner.finalize(computed)

    def pull(self, event: Pull) -> Action:
        raise AssertionError("every worker sees the newest parameters")

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        """Apply the gradient without keeping other writers out."""
        start, machine = now(), self.memory.machine
        assert isinstance(machine, Shard)
        self.side.ensure_trace_space()
        with self.guard:
            self.store.step(gradients)
            self.shared.keep_buffers(self.moving)
            self.side.record(Kind.APPLY, event.batch, 0, -1, -1, start, now(), 0, 0, 0, 0.0)
            self.pushes += 1
            self.side.write_state(self.pushes, self.worker_state)
            machine.note(self.memory.integers.current, self.side.number, event.batch)
        return Apply(-1, -1)

    def values(self) -> list[Tensor]:
        return self.side.learner.replica.values()

    def worker_state(self) -> WorkerState:
        return state_of_tensors("moving", self.moving) | state_of_store(self.store)


# PairwisePort: a worker averages its replica with one neighbour's, then applies its gradient.


class PairwisePort(ShardPort):
    """The port of AD-PSGD. All replicas lie in one shard, where a neighbour may change this worker's."""

    def __init__(self, side: WorkerSide, number: int, memory: ShardMemory, lock: Locked, rule: AdPsgd) -> None:
        super().__init__(side, number, memory, lock)
        assert isinstance(memory.slots, ReplicaSlots)
        self.rule, self.slots = rule, memory.slots
        self.replica = GossipReplica(side.learner, side.local_store(Plain()), rule, memory.versions)
        self.replica.bind_to_slot(self.slots.of(memory.integers.current, side.number))
        self.partner: int | None = None
        self.gradients: list[Tensor | None] = []

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        current = self.memory.integers.current
        if resumed:
            self.side.learner.set_buffers(self.memory.versions[self.slots.of(current, self.side.number)].buffers)
        if saved is not None:
            self.replica.restore(saved)
        self.side.write_state(self.memory.machine.base(current, self.side.number), self.worker_state)

    def begin_part(self) -> None:
        """Do nothing: the data are not divided into parts."""

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        return self.side.learner.finalize(computed)

    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        side = self.side
        self.partner = self.rule.partner(side.number, side.plan.workers, side.seed, event.batch)
        self.gradients = gradients

    def make(self, draft: State, version: int) -> None:
        theirs = None if self.partner is None else self.slots.change(draft, self.partner)
        self.replica.step(version, self.gradients, self.slots.move(draft, self.side.number), theirs)
        self.side.write_state(version, self.worker_state)

    def fetch(self, draft: State) -> None:
        """Do nothing: a replica computes with its own parameters."""

    def worker_state(self) -> WorkerState:
        return self.replica.worker_state()

    def trained(self) -> list[Tensor]:
        """Return the mean of all replicas."""
        return mean_of([[v.clone() for v in (*r.parameters, *r.buffers)] for r in self.memory.all_newest])


# CentrePort: a replica that has stepped on its own is exchanged with a centre, and both change.


class CentrePort(ShardPort):
    """The port of elastic averaging, DiLoCo and map-reduce with a centre."""

    def __init__(self, side: WorkerSide, number: int, memory: ShardMemory, lock: Locked, rule: Exchanging) -> None:
        super().__init__(side, number, memory, lock)
        self.replica = ExchangingReplica(side.learner, side.optimizer, rule)

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        if saved is not None:
            self.replica.restore(saved)
        elif resumed:
            self.replica.join(_values(self.memory.newest))
        version = self.memory.machine.base(self.memory.integers.current, self.side.number)
        self.side.write_state(version, self.worker_state)

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        """Make a local step; the replica itself is pushed."""
        self.replica.step(batch, computed)
        return []

    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        """Do nothing: the exchange needs the centre."""

    def make(self, draft: State, version: int) -> None:
        versions, (source, target) = self.memory.versions, self.memory.slots.move(draft, self.side.number)
        self.memory.copy(versions[target].raw, versions[source].raw)
        self.replica.exchange(versions[target])
        self.side.write_state(version, self.worker_state)

    def fetch(self, draft: State) -> None:
        """Begin with the centre's parameters, as a worker that joins late does."""
        self.replica.join(_values(self.memory.versions[self.memory.slots.newest(draft)]))

    def begin_part(self) -> None:
        self.replica.begin()

    def trained(self) -> list[Tensor]:
        return self.side.learner.replica.values()

    def worker_state(self) -> WorkerState:
        return self.replica.worker_state()


def _values(centre: ShardVersion) -> list[Tensor]:
    return [*centre.parameters, *centre.buffers]


#: Returns the lock of a shard; a `shared` one keeps out only those who do not share it.
LockOf = Callable[[int, bool], Locked]
ServerPort = ShardPort | HogwildPort


def open_ports(
    side: WorkerSide, memories: Sequence[ShardMemory], lock_of: LockOf, buffers: Sequence[Payload]
) -> Sequence[ServerPort]:
    """Open one worker's port to every shard; `buffers` hold the gradients of a round, if the method gathers them."""
    if not side.plan.traits.versioned:
        return [HogwildPort(side, memory, lock_of(n, True)) for n, memory in enumerate(memories)]
    return [_port(side, n, memory, lock_of(n, False), buffers) for n, memory in enumerate(memories)]


def _port(side: WorkerSide, number: int, memory: ShardMemory, lock: Locked, buffers: Sequence[Payload]) -> ShardPort:
    """Return the port by what a push brings: replicas meet a centre or each other, or gradients are applied."""
    server = server_of(side.plan)
    if server.exchange is not None:
        return CentrePort(side, number, memory, lock, server.exchange)
    if server.pairing is not None:
        return PairwisePort(side, number, memory, lock, server.pairing)
    if server.gathers:
        return GatheringPort(side, number, memory, lock, server.rule, GatherBuffers(side.layout, buffers))
    return GradientPort(side, number, memory, lock, server.rule)


def version_shapes(
    method: Server, layout: Layout, named: Mapping[str, nn.Parameter], optimizer: Optimizer, tables: Sequence[str]
) -> list[VersionShape]:
    """Return the shape of a version of each shard."""
    shapes = []
    for shard in layout.shards:
        mine = [named[span.name] for span in shard.parameters]
        stepping = optimizer_over(optimizer, {p: p for p in mine}) if method.traits.optimizer_at_server else None
        shapes.append(version_shape(shard, layout.dtype, mine, stepping, method.exchange or method.rule, tables))
    return shapes


def put_version_0(
    memories: Sequence[ShardMemory],
    layout: Layout,
    module: nn.Module,
    method: Server,
    remembered: Mapping[Tensor, dict[str, object]],
) -> None:
    """Write what every worker starts from into every version of every shard, with the optimizer's earlier state."""
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    for shard, memory in zip(layout.shards, memories, strict=True):
        parameters, buffers = [named[p.name] for p in shard.parameters], [named[p.name] for p in shard.buffers]
        for version in memory.versions:
            version.start(parameters, [b.to(layout.dtype) for b in buffers], method.exchange or method.rule)
            for number, parameter in enumerate(parameters if version.shape.remembers else ()):
                if parameter in remembered:
                    version.state.keep(number, remembered[parameter])


def restore(memory: ShardMemory, method: Server, saved: Sequence[WorkerState]) -> None:
    """Write the state of this shard at the checkpoint, one per replica, into every version."""
    if method.pairing is not None:
        flats = [state.tensors["values"] for state in saved]
        for number, version in enumerate(memory.versions):
            version.values.copy_(method.pairing.resume(flats, number // 3, memory.machine.workers))
        return
    (state,) = saved
    for version in memory.versions:
        version.restore(state)


def gather_buffers(memories: Sequence[ShardMemory], layout: Layout) -> list[Payload]:
    """Make private buffers for the gradients of a round."""
    slots = sum(memory.machine.slots for memory in memories)
    return [Payload(layout, torch.zeros(Payload.length(layout), dtype=layout.dtype)) for _ in range(slots)]
