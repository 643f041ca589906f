"""Ports of servers whose rule and optimizer work at the shard: on each gradient as it arrives, or on sums of some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.algorithms.rules import GradientUpdate, Rule
from paceline.algorithms.server.messages import Push
from paceline.algorithms.server.shard import Gathering
from paceline.algorithms.server.version_slots import VersionSlots
from paceline.runtime.engines.servers.shard_memory import Locked, ShardMemory, ShardPort, WorkerSide
from paceline.training.gradients.encoder import PulledView
from paceline.training.gradients.message import MessageShape
from paceline.training.gradients.native_step import native_versions
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.optimizers import optimizer_over
from paceline.training.parameters.replicas import weighted_sum
from paceline.training.parameters.shard_version import RowCopier
from paceline.training.parameters.store import ShardStore
from paceline.training.parameters.worker_state import WorkerState

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


class RulePort(ShardPort):
    """A port by which a rule and the user's optimizer make versions.

    `part` is the shard's number within the worker's layout; by default it is that of the shard.
    """

    def __init__(
        self, side: WorkerSide, number: int, memory: ShardMemory, lock: Locked, rule: Rule, part: int | None = None
    ) -> None:
        super().__init__(side, number, memory, lock)
        self.rule, self.part = rule, number if part is None else part
        replica, shard = side.learner.replica, side.layout.shards[self.part]
        named = dict(replica.module.named_parameters())
        mine = [named[span.name] for span in shard.parameters]
        numbers = {id(parameter): n for n, parameter in enumerate(replica.parameters)}
        self.parameters = [numbers[id(parameter)] for parameter in mine]
        self.optimizer = optimizer_over(side.optimizer, {p: p for p in mine})
        rows = RowCopier(memory.versions, memory.journal) if memory.versions[0].shape.tables else None
        self.store = ShardStore(mine, self.optimizer, side.schedule, memory.versions, rows, memory.copy)
        assert isinstance(memory.slots, VersionSlots)
        self.slots = memory.slots
        self.store.bind_to_slot(self.slots.of(memory.integers.current, side.number))
        #: Makes a version in one pass; None where the rule and the optimizer make it by PyTorch.
        self.native = native_versions(self.store, rule, side.plan.workers > 1) if side.plan.pull is None else None
        #: What this worker has under coded pulls, and computes with; None: the version itself.
        self.pulled: PulledView | None = None
        if (pull := side.plan.pull) is not None:
            self.pulled = PulledView(MessageShape(pull, shard, side.layout.dtype), side.seed)
        #: The version that was answered last; -1: the next answer is whole.
        self.answered = -1
        #: Running statistics, which belong to shard 0; the last push wins.
        self.moving = replica.moving if self.part == 0 else []

    def apply(self, draft: State, version: int, arrival: GradientUpdate) -> None:
        """Make a version of what has arrived."""
        # A schedule follows the shard's versions; this worker has made only some of them.
        self.store.updates, move = version - 1, self.slots.move(draft, self.side.number)
        if self.native is None or not self.native.make(*move, arrival.gradients):
            pulled = arrival.pulled or self.store.pulled(self.rule)
            self.store.move(*move)
            self.rule.update(self.store, GradientUpdate(arrival.gradients, pulled))
        self.store.version.keep_buffers(self.moving)
        self.bytes = self.store.bytes
        self._answer(version)

    def fetch(self, draft: State) -> None:
        self.store.fetch(*self.slots.fetch(draft, self.side.number))
        if self.pulled is not None and self.memory.machine.base(draft, self.side.number) == self.answered:
            self._compute_with(self.pulled)  # it has that version, as it was answered
        else:
            self.answered = -1
        if self.moving:
            self.take_buffers()

    def _answer(self, version: int) -> None:
        """Compute with what an answer says of this version, under coded pulls."""
        if self.pulled is None:
            return
        newest = self.store.version
        if self.answered < 0:
            self.pulled.whole(newest.parameters, newest.buffers)
        else:
            self.pulled.difference(newest.parameters, newest.buffers, version)
        self.answered = version
        self._compute_with(self.pulled)

    def _compute_with(self, pulled: PulledView) -> None:
        for parameter, value in zip(self.store.parameters, pulled.values, strict=True):
            parameter.data = value

    def take_buffers(self) -> None:
        """Continue from the running statistics of this version."""
        self.side.learner.set_buffers(self.store.version.buffers)

    def begin_part(self) -> None:
        """Do nothing: the data are not divided into parts."""

    def trained(self) -> list[Tensor]:
        return self.side.learner.replica.values()


class GradientPort(RulePort):
    """The port of Downpour, stale-synchronous and delay-compensated servers."""

    arrival: GradientUpdate | None = None

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        if resumed and self.part == 0:
            self.take_buffers()
        if self.side.encoder is not None and self.part == 0:
            if saved is not None:
                self.side.encoder.restore(saved)
            base = self.memory.machine.base(self.memory.integers.current, self.side.number)
            self.side.write_state(base, self.worker_state)

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        settled, encoder = self.side.learner.finalize(computed), self.side.encoder
        if encoder is None:
            return settled
        return encoder.through(settled, computed.buffers, batch, computed.part)

    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        # One pass reads what this worker computed from where it lies.
        pulled = self.store.pulled(self.rule) if self.native is None else []
        self.arrival = GradientUpdate([gradients[n] for n in self.parameters], pulled)

    def make(self, draft: State, version: int) -> None:
        assert self.arrival is not None
        self.apply(draft, version, self.arrival)
        if (encoder := self.side.encoder) is not None:
            if self.part == 0:
                self.side.write_state(version, self.worker_state)
            # Half of what a store counts is what is pushed.
            back = self.pulled.bytes if self.pulled is not None else self.store.bytes // 2
            self.bytes = encoder.pushed_bytes(self.part) + back
        self.arrival = None  # frees the gradients, so that what the next step touches stays in the cache

    def worker_state(self) -> WorkerState:
        """Return what the codec owes; all else is in the shard."""
        return self.side.encoder.state() if self.side.encoder is not None else WorkerState()


# GatheringPort: a shard holds gradients until a round is full; the worker that fills it applies their sum.

# Buffers for the gradients of a round until it is full; `algorithms.server.shard` assigns the slots.


class GatherBuffers:
    """One payload per slot, and one for their sum."""

    def __init__(self, layout: Layout, payloads: Sequence[Payload]) -> None:
        self.flats, self.payloads = [payload.flat for payload in payloads], payloads
        self._sum = torch.zeros_like(self.flats[0])
        self._whole = Payload(layout, self._sum)

    def write(self, slot: int, computed: GradientSum) -> None:
        """Write a gradient into a slot."""
        self.payloads[slot].write(computed)

    def add_up(self, slots: Sequence[int]) -> GradientSum:
        """Return the sum in other memory: slots must stay unchanged until the version made of it is committed."""
        weighted_sum(self.flats, [(slot, 1.0) for slot in slots], self._sum)
        return self._whole.read(1)


class GatheringPort(RulePort):
    """The port of a server with backup workers; `buffers` hold the gradients until the round is full."""

    computed: GradientSum | None = None

    def __init__(
        self, side: WorkerSide, number: int, memory: ShardMemory, lock: Locked, rule: Rule, buffers: GatherBuffers
    ) -> None:
        super().__init__(side, number, memory, lock, rule)
        self.buffers = buffers
        assert isinstance(memory.machine, Gathering)
        self.machine = memory.machine

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        """Do nothing: every worker pulls before it computes."""

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        self.computed = computed
        return []

    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        assert self.computed is not None
        self.buffers.write(self.machine.slot(self.memory.integers.current, self.side.number), self.computed)

    def make(self, draft: State, version: int) -> None:
        total = self.buffers.add_up([push.slot for push in self.machine.full_round(draft)])
        self.apply(draft, version, GradientUpdate(self.side.learner.finalize(total, alone=True)))

    def worker_state(self) -> WorkerState:
        """Return nothing: the whole state is in the shard."""
        return WorkerState()
