"""A worker's own replica: it steps alone, and now and then meets the others (`Wanderer`) or a centre (`Commuter`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.compute.home import ReplicaHome, Room
from paceline.compute.learner import Learner
from paceline.compute.payload import Computed
from paceline.core.rules import Averaging, Exchanging


class Wanderer:
    def __init__(self, learner: Learner, home: ReplicaHome, rule: Averaging) -> None:
        self.learner, self.home, self.rule = learner, home, rule

    def step(self, computed: Computed) -> None:
        """One local step with the worker's own chunks; none when it had no samples."""
        if computed.samples:
            met = [b.clone() for b in self.learner.replica.moving] if self.rule.mixes_first else None
            self.home.step(self.learner.settle(computed, alone=True))
            if met is not None:
                self.learner.set_buffers(met)

    def bring(self) -> Computed:
        """What this replica brings to a meeting."""
        brought = [self.rule.brings(v, m) for v, m in zip(self.home.values, self.home.memory, strict=True)]
        dtype = brought[0].dtype
        return Computed(list(brought), [b.to(dtype) for b in self.learner.replica.moving], 0.0, 1.0, 1)

    def take(self, mean: Computed) -> None:
        """The mean of what all it met have brought."""
        for value, memory, middle in zip(self.home.values, self.home.memory, mean.gradients, strict=True):
            assert middle is not None
            self.rule.takes(value, memory, middle)
        self.learner.set_buffers(mean.buffers)

    def result(self) -> list[Tensor]:
        """What the training has made of the parameters so far, then the moving buffers."""
        found = [self.rule.result(v, m) for v, m in zip(self.home.values, self.home.memory, strict=True)]
        return [t.detach().clone() for t in (*found, *self.learner.replica.moving)]


class Commuter:
    """A replica that steps alone, and now and then goes to one place of a centre."""

    def __init__(self, learner: Learner, home: ReplicaHome, rule: Exchanging) -> None:
        self.learner, self.home, self.rule = learner, home, rule
        self.carried = [rule.carries(value) for value in home.values]

    def step(self, update: int, computed: Computed) -> None:
        self.home.updates = update  # of all workers: a schedule counts samples, whoever saw them
        self.home.step(self.learner.settle(computed))

    def exchange(self, centre: Room) -> None:
        mine = zip(centre.parameters, centre.memory, self.home.values, self.carried, strict=True)
        for value, memory, own, carried in mine:
            self.rule.exchange(value, memory, own, carried)
        centre.keep_buffers(self.learner.replica.moving)


def mix(vectors: Sequence[Tensor], weights: list[tuple[int, float]], into: Tensor) -> None:
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
