"""A worker's own replica: it steps alone, and now and then meets the others (`Wanderer`), a centre (`Commuter`) or one
other (`Peer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.core.rules import Averaging, Exchanging
from paceline.core.rules.ad_psgd import AdPsgd
from paceline.core.rules.plain import Plain
from paceline.gradients.learner import Learner
from paceline.gradients.payload import GradientSum
from paceline.parameters.optimizers import Optimizer, optimizer_over
from paceline.parameters.shard_version import ShardVersion
from paceline.parameters.store import LocalStore, restore_store, state_of_store
from paceline.parameters.worker_state import (
    WorkerState,
    copy_into,
    restore_memories,
    state_of_memories,
    state_of_tensors,
)

Ways = tuple[int, int]  # from one room to another


class AveragingReplica:
    def __init__(self, learner: Learner, home: LocalStore, rule: Averaging) -> None:
        self.learner, self.home, self.rule = learner, home, rule

    def step(self, computed: GradientSum) -> None:
        """One local step with the worker's own chunks; none when it had no samples, or they were left out."""
        if computed.weight:
            met = [b.clone() for b in self.learner.replica.moving] if self.rule.mixes_first else None
            self.home.step(self.learner.settle(computed, alone=True))
            if met is not None:
                self.learner.set_buffers(met)

    def bring(self) -> GradientSum:
        """What this replica brings to a meeting."""
        brought = [self.rule.brings(v, m) for v, m in zip(self.home.values, self.home.memory, strict=True)]
        dtype = brought[0].dtype
        return GradientSum(list(brought), [b.to(dtype) for b in self.learner.replica.moving], 0.0, 1.0, 1)

    def take(self, mean: GradientSum) -> None:
        """The mean of what all it met have brought."""
        for value, memory, middle in zip(self.home.values, self.home.memory, mean.gradients, strict=True):
            assert middle is not None
            self.rule.takes(value, memory, middle)
        self.learner.set_buffers(mean.buffers)

    def result(self) -> list[Tensor]:
        """What the training has made of the parameters so far, then the moving buffers."""
        found = [self.rule.result(v, m) for v, m in zip(self.home.values, self.home.memory, strict=True)]
        return [t.detach().clone() for t in (*found, *self.learner.replica.moving)]


class ExchangingReplica:
    """A replica that steps alone, and now and then goes to one place of a centre."""

    def __init__(self, learner: Learner, optimizer: Optimizer, rule: Exchanging) -> None:
        self.learner, self.optimizer, self.rule = learner, optimizer, rule
        self.carried = [rule.carries(value) for value in learner.replica.values()]
        self.home = self._fresh_home()

    def _fresh_home(self) -> LocalStore:
        replica, job = self.learner.replica, self.learner.replica.job
        optimizer = optimizer_over(self.optimizer, {p: p for p in replica.parameters})
        return LocalStore(replica.parameters, optimizer, job.schedule, Plain())

    def worker_state(self) -> WorkerState:
        """After a visit. Where each lease begins anew, nothing is carried from one to the next."""
        if self.rule.parts:
            return WorkerState()
        return (
            self.learner.replica.worker_state() | state_of_memories("carried", self.carried) | state_of_store(self.home)
        )

    def restore(self, worker_state: WorkerState) -> None:
        if self.rule.parts:
            return
        self.learner.replica.restore(worker_state)
        restore_memories(self.carried, worker_state, "carried")
        restore_store(self.home, worker_state)

    def join(self, centre: ShardVersion) -> None:
        """As one more worker, who begins at the centre as it is now."""
        if self.rule.parts:
            return
        self.learner.replica.restore(state_of_tensors("values", [*centre.parameters, *centre.buffers]))
        self.carried = [self.rule.carries(value) for value in self.learner.replica.values()]

    def begin(self) -> None:
        """With another part of the data: from the start."""
        for value, carried in zip(self.learner.replica.values(), self.carried, strict=True):
            value.copy_(carried["start"])
        self.home = self._fresh_home()

    def step(self, update: int, computed: GradientSum) -> None:
        if not self.rule.parts:
            self.home.updates = update  # of all workers: a schedule counts samples, whoever saw them
        self.home.step(self.learner.settle(computed))

    def exchange(self, centre: ShardVersion) -> None:
        values = self.learner.replica.values()
        parameters = len(centre.parameters)
        for value, memory, own, carried in zip(centre.parameters, centre.memory, values, self.carried, strict=False):
            self.rule.exchange(value, memory, own, carried)
        if not self.rule.parts:
            centre.keep_buffers(values[parameters:])
            return
        for buffer, own, carried in zip(centre.buffers, values[parameters:], self.carried[parameters:], strict=True):
            self.rule.exchange(buffer, {}, own.to(buffer.dtype), carried)


class GossipReplica:
    """A replica that others reach: before each of its steps it meets one of them halfway."""

    def __init__(self, learner: Learner, home: LocalStore, rule: AdPsgd, rooms: list[ShardVersion]) -> None:
        self.learner, self.home, self.rule, self.rooms = learner, home, rule, rooms

    def worker_state(self) -> WorkerState:
        """After a meeting: its values lie where others reach them."""
        return state_of_tensors("moving", self.learner.replica.moving) | state_of_store(self.home)

    def restore(self, worker_state: WorkerState) -> None:
        copy_into(self.learner.replica.moving, worker_state.many("moving"))
        restore_store(self.home, worker_state)

    def look(self, room: int) -> None:
        """Let the module compute with the version in this room."""
        for parameter, view in zip(self.home.parameters, self.rooms[room].parameters, strict=True):
            parameter.data = view

    def step(self, version: int, gradients: list[Tensor | None], mine: Ways, theirs: Ways | None) -> None:
        """From the newest version of one's own, and of the one met, in their rooms, to the next in others."""
        source, target = mine
        room, moving = self.rooms[target], self.learner.replica.moving
        room.values.copy_(self.rooms[source].values)
        room.keep_buffers(moving)
        if theirs is not None:
            other = self.rooms[theirs[1]].values
            other.copy_(self.rooms[theirs[0]].values)
            self.rule.meet(room.values, other)
        self.learner.set_buffers(room.buffers)
        self.look(target)
        self.home.updates = version - 1  # of all workers: a schedule counts samples, whoever saw them
        self.home.step(gradients)


def mix(vectors: Sequence[Tensor] | Mapping[int, Tensor], weights: list[tuple[int, float]], into: Tensor) -> None:
    """The weighted sum of some workers' vectors, in the order of the weights."""
    (first, share), *rest = weights
    torch.mul(vectors[first], share, out=into)
    for other, weight in rest:
        into.add_(vectors[other], alpha=weight)


def middle(results: list[list[Tensor]]) -> list[Tensor]:
    """The mean of several workers' results."""
    if len(results) == 1:
        return results[0]
    return [torch.stack([t.to(results[0][0].dtype) for t in same]).mean(0) for same in zip(*results, strict=True)]
