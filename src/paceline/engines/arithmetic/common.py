"""What everybody's arithmetic shares: the learner of one process, snapshots on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.data.source import Reader
from paceline.engines.outcome import Snapshot
from paceline.engines.setup import Setup
from paceline.gradients.encoder import GradientEncoder
from paceline.gradients.learner import Learner


class Snapshots:
    """Kept on the way, for evaluation afterwards."""

    setup: Setup
    snapshots: list[Snapshot]

    def values(self) -> list[Tensor]:
        raise NotImplementedError

    def keep(self, updates: int, seconds: float) -> None:
        if self.setup.agenda.reaches(updates, self.setup.snapshots_every):
            values = self.values()
            self.snapshots.append(Snapshot(updates, seconds, lambda: values))


def make_learner(setup: Setup) -> tuple[Learner, torch.optim.Optimizer]:
    module = setup.fresh_module()
    replica = setup.placement.replica(0, setup.job, module.train(), setup.probe.moving)
    optimizer = setup.job.make_optimizer(module, replica.parameters)
    return Learner(replica, Reader(setup.source, setup.order(), 0, lambda _: None)), optimizer


def make_encoders(setup: Setup, parameters: Sequence[Tensor]) -> list[GradientEncoder]:
    return [GradientEncoder(setup.plan.wire, parameters) for _ in range(setup.plan.workers)]
