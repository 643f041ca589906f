"""A worker's replica under an averaging rule: it steps alone, and now and then all replicas meet."""

from __future__ import annotations

from torch import Tensor

from paceline.compute.home import ReplicaHome
from paceline.compute.learner import Learner
from paceline.compute.payload import Computed
from paceline.core.rules import Averaging


class Wanderer:
    def __init__(self, learner: Learner, home: ReplicaHome, rule: Averaging, workers: int) -> None:
        self.learner, self.home, self.rule, self.workers = learner, home, rule, workers

    def step(self, computed: Computed) -> None:
        """One local step with the worker's own chunks; none when it had no samples."""
        if computed.samples:
            self.home.step(self.learner.settle(computed, alone=True))

    def bring(self) -> Computed:
        """What this replica brings to a meeting."""
        brought = [self.rule.brings(v, m) for v, m in zip(self.home.values, self.home.memory, strict=True)]
        dtype = brought[0].dtype
        return Computed(list(brought), [b.to(dtype) for b in self.learner.replica.moving], 0.0, 1.0, 1)

    def take(self, total: Computed) -> None:
        """The sum of what all have brought."""
        mean = total.scaled(1.0 / self.workers)
        for value, memory, middle in zip(self.home.values, self.home.memory, mean.gradients, strict=True):
            assert middle is not None
            self.rule.takes(value, memory, middle)
        self.learner.set_buffers(mean.buffers)

    def result(self) -> list[Tensor]:
        """What the training has made of the parameters so far, then the moving buffers."""
        found = [self.rule.result(v, m) for v, m in zip(self.home.values, self.home.memory, strict=True)]
        return [t.detach().clone() for t in (*found, *self.learner.replica.moving)]
