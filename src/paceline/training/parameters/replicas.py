"""Replicas that step on their own, and are sometimes averaged with others, with a centre, or with one neighbour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.algorithms.rules import Averaging, Exchanging, Memory
from paceline.algorithms.rules.averaging import ALPHA, AdPsgd
from paceline.algorithms.rules.gradients import Plain
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import Fragments
from paceline.training.parameters.optimizers import Optimizer, optimizer_over
from paceline.training.parameters.shard_version import ShardVersion
from paceline.training.parameters.store import LocalStore, restore_store, state_of_store
from paceline.training.parameters.worker_state import (
    WorkerState,
    copy_into,
    restore_memories,
    state_of_memories,
    state_of_tensors,
)

SlotMove = tuple[int, int]  # (the slot of the newest version, the slot where the next one is made)


class SteppingReplica:
    """A replica that is stepped by the gradients of whole batches."""

    def __init__(self, learner: Learner, store: LocalStore) -> None:
        self.learner, self.store = learner, store

    def step(self, gradient: GradientSum) -> None:
        self.store.step(self.learner.finalize(gradient))
        self.note_losses([gradient.mean])

    def note_losses(self, losses: Sequence[float]) -> None:
        """Let a schedule that follows losses have those of updates that were made."""
        self.store.schedule.record_loss(*losses)

    def result(self) -> list[Tensor]:
        """Return the parameters, then the moving buffers."""
        return self.learner.replica.values()


class AveragingReplica:
    """A replica that a collective averages with those of other workers."""

    def __init__(self, learner: Learner, store: LocalStore, rule: Averaging, fragments: Fragments) -> None:
        self.learner, self.store, self.rule, self.fragments = learner, store, rule, fragments

    def step(self, computed: GradientSum) -> None:
        """Make one local step with the worker's own chunks; none where it had no samples or they were left out."""
        if computed.weight:
            averaged = [b.clone() for b in self.learner.replica.moving] if self.rule.mixes_first else None
            self.store.step(self.learner.finalize(computed, alone=True))
            if averaged is not None:
                self.learner.set_buffers(averaged)

    def contribution(self, number: int, worker: int) -> GradientSum:
        """Return what this replica, which is that of this worker, contributes to the exchange of this number."""
        values: list[Tensor | None] = [self.rule.contribution(v, m) for v, m in self._fragment(number)]
        buffers = self.learner.replica.moving if self._has_buffers(number) else []
        dtype = self.fragments.layout.dtype
        moving = [b.to(dtype, copy=True) for b in buffers]  # they may change while they are exchanged
        return GradientSum(values, moving, 0.0, 1.0, 1, worker)

    def apply_mean(self, number: int, mean: GradientSum, late: bool = False) -> None:
        """Continue from the mean of the contributions to the exchange of this number.

        If it is `late`, the replica has stepped since it contributed, and continues from a mixture.
        """
        for (value, memory), average in zip(self._fragment(number), mean.gradients, strict=True):
            assert average is not None
            local = value.clone() if late else value
            self.rule.apply_mean(value, memory, average)
            if late:
                value.lerp_(local, ALPHA)
        if self._has_buffers(number):
            self.learner.set_buffers(mean.buffers)

    def _fragment(self, number: int) -> list[tuple[Tensor, Memory]]:
        """Return the parameters that are exchanged in the exchange of this number, with the rule's memory of them."""
        values, memory = self.store.values, self.store.memory
        return [(values[n], memory[n]) for n in self.fragments.of_number(number, self.fragments.numbers)]

    def _has_buffers(self, number: int) -> bool:
        return number % len(self.fragments) == 0

    def result(self) -> list[Tensor]:
        """Return the training's parameters so far, then the moving buffers."""
        parameters = [self.rule.result(v, m) for v, m in zip(self.store.values, self.store.memory, strict=True)]
        return [t.detach().clone() for t in (*parameters, *self.learner.replica.moving)]


class ExchangingReplica:
    """A replica that is exchanged with the centre every few steps."""

    def __init__(self, learner: Learner, optimizer: Optimizer, rule: Exchanging) -> None:
        self.learner, self.optimizer, self.rule = learner, optimizer, rule
        #: What the rule has this worker remember between two exchanges, per parameter and moving buffer.
        self.carried = [rule.carries(value) for value in learner.replica.values()]
        self.store = self._fresh_store()

    def _fresh_store(self) -> LocalStore:
        replica = self.learner.replica
        return replica.local_store(optimizer_over(self.optimizer, {p: p for p in replica.parameters}), Plain())

    def worker_state(self) -> WorkerState:
        """Return the state after an exchange. It is empty where every lease starts afresh."""
        if self.rule.parts:
            return WorkerState()
        carried = state_of_memories("carried", self.carried)
        return self.learner.replica.worker_state() | carried | state_of_store(self.store)

    def restore(self, worker_state: WorkerState) -> None:
        if self.rule.parts:
            return
        self.learner.replica.restore(worker_state)
        restore_memories(self.carried, worker_state, "carried")
        restore_store(self.store, worker_state)

    def join(self, centre: Sequence[Tensor]) -> None:
        """Start from the centre's values as they are now, as a worker that joins does."""
        if self.rule.parts:
            return
        self.learner.replica.restore(state_of_tensors("values", centre))
        self.store = self._fresh_store()
        self.carried = [self.rule.carries(value) for value in self.learner.replica.values()]

    def begin(self) -> None:
        """Start another part of the data from the initial parameters."""
        for value, carried in zip(self.learner.replica.values(), self.carried, strict=True):
            value.copy_(carried["start"])
        self.store = self._fresh_store()

    def step(self, update: int, computed: GradientSum) -> None:
        """Make one local step."""
        if not self.rule.parts:
            self.store.updates = update  # of all workers: a schedule counts samples, whichever worker saw them
        self.store.step(self.learner.finalize(computed))

    def exchange(self, centre: ShardVersion) -> None:
        """Change the centre and this replica by the rule."""
        exchange_with(self.rule, centre, self.learner.replica.values(), self.carried)


def exchange_with(rule: Exchanging, centre: ShardVersion, values: Sequence[Tensor], carried: Sequence[Memory]) -> None:
    """Change the centre and a replica's values, with what it carries, by the rule."""
    parameters = len(centre.parameters)
    for value, memory, local, mine in zip(centre.parameters, centre.memory, values, carried, strict=False):
        rule.exchange(value, memory, local, mine)
    if not rule.parts:
        centre.keep_buffers(values[parameters:])
        return
    for buffer, local, mine in zip(centre.buffers, values[parameters:], carried[parameters:], strict=True):
        rule.exchange(buffer, {}, local.to(buffer.dtype), mine)


class GossipReplica:
    """A replica in shared memory. Before each of its steps it is averaged with one neighbour's."""

    def __init__(self, learner: Learner, store: LocalStore, rule: AdPsgd, versions: list[ShardVersion]) -> None:
        self.learner, self.store, self.rule, self.versions = learner, store, rule, versions

    def worker_state(self) -> WorkerState:
        """Return the state after a step, without the values, which are in shared memory."""
        return state_of_tensors("moving", self.learner.replica.moving) | state_of_store(self.store)

    def restore(self, worker_state: WorkerState) -> None:
        copy_into(self.learner.replica.moving, worker_state.many("moving"))
        restore_store(self.store, worker_state)

    def bind_to_slot(self, slot: int) -> None:
        """Let the module compute with the version in this slot."""
        for parameter, view in zip(self.store.parameters, self.versions[slot].parameters, strict=True):
            parameter.data = view

    def step(self, update: int, gradients: list[Tensor | None], mine: SlotMove, theirs: SlotMove | None) -> None:
        """Average with the neighbour, then apply the gradients. New versions are made in the moves' second slots."""
        source, target = mine
        version, moving = self.versions[target], self.learner.replica.moving
        version.values.copy_(self.versions[source].values)
        version.keep_buffers(moving)
        if theirs is not None:
            other = self.versions[theirs[1]].values
            other.copy_(self.versions[theirs[0]].values)
            self.rule.average(version.values, other)
        self.learner.set_buffers(version.buffers)
        self.bind_to_slot(target)
        self.store.updates = update - 1  # of all workers: a schedule counts samples, whichever worker saw them
        self.store.step(gradients)


def weighted_sum(
    vectors: Sequence[Tensor] | Mapping[int, Tensor], weights: list[tuple[int, float]], into: Tensor
) -> None:
    """Write the weighted sum of some workers' vectors, summed in the order of the weights."""
    (first, share), *rest = weights
    torch.mul(vectors[first], share, out=into)
    for other, weight in rest:
        into.add_(vectors[other], alpha=weight)


def mean_of(results: list[list[Tensor]]) -> list[Tensor]:
    """Return the mean of several workers' results."""
    if len(results) == 1:
        return results[0]
    return [torch.stack([t.to(results[0][0].dtype) for t in same]).mean(0) for same in zip(*results, strict=True)]
