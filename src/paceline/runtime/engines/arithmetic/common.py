"""Helpers for the arithmetic of all methods: a worker's learner, the encoders, and snapshots."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paceline.runtime.engines.outcome import Snapshot
from paceline.runtime.engines.setup import Setup
from paceline.training.data.source import Reader
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.partial_sums import PartialSums


class Snapshots:
    """The parameters after some updates, kept for evaluation afterwards; `values` gives the present ones."""

    def __init__(self, setup: Setup, values: Callable[[], list[Tensor]]) -> None:
        self.setup, self.values = setup, values
        self.kept: list[Snapshot] = []

    def keep(self, updates: int, seconds: float) -> None:
        """Keep a snapshot, if one is due after so many updates."""
        if self.setup.agenda.reaches(updates, self.setup.snapshots_every):
            values = self.values()
            self.kept.append(Snapshot(updates, seconds, lambda: values))


def make_learner(setup: Setup) -> tuple[Learner, torch.optim.Optimizer]:
    """Make a worker's learner and optimizer on a fresh module."""
    module = setup.fresh_module()
    replica = setup.placement.replica(0, setup.job, module.train(), setup.probe.moving)
    optimizer = setup.job.make_optimizer(module, replica.parameters)
    sums = PartialSums(setup.layout, setup.plan.canonical) if setup.plan.canonical else None
    return Learner(replica, Reader(setup.source, setup.order(), 0, lambda _: None), sums), optimizer
