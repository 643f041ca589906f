"""A learning-rate schedule that steps once per epoch, in a training whose schedules step once per update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.parameters.optimizers import LRSchedule, Optimizer


@dataclass(frozen=True)
class EveryEpoch:
    """Makes the user's schedule, and steps it after each epoch."""

    schedule: LRSchedule
    updates_per_epoch: int

    def __call__(self, optimizer: Optimizer) -> EpochSteps:
        return EpochSteps(self.schedule(optimizer), self.updates_per_epoch)


class EpochSteps:
    """A schedule that passes on the last of every `updates_per_epoch` steps."""

    def __init__(self, scheduler: Any, updates_per_epoch: int) -> None:
        self.scheduler, self.updates_per_epoch = scheduler, updates_per_epoch
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps % self.updates_per_epoch == 0:
            self.scheduler.step()
