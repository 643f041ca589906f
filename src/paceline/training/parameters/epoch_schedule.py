"""A learning-rate schedule that steps once per epoch, in a training whose schedules step once per update.

`ReduceLROnPlateau` is one: it steps with the mean training loss of the epoch, which every worker of a plan that adds
gradients up knows. A replay hears the same losses and so has the same learning rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from paceline.errors import JobError, users_code
from paceline.training.parameters.optimizers import LRSchedule, Optimizer


@dataclass(frozen=True)
class EveryEpoch:
    """Makes the user's schedule, and steps it after each epoch."""

    schedule: LRSchedule
    updates_per_epoch: int

    def __call__(self, optimizer: Optimizer) -> EpochSteps:
        return EpochSteps(optimizer, self.schedule(optimizer), self.updates_per_epoch)


class EpochSteps:
    """A schedule that passes on the last of every `updates_per_epoch` steps."""

    def __init__(self, optimizer: Optimizer, scheduler: Any, updates_per_epoch: int) -> None:
        self.optimizer, self.scheduler, self.updates_per_epoch = optimizer, scheduler, updates_per_epoch
        self._steps = 0
        #: The finite losses of this epoch so far: their sum and number.
        self._losses = (0.0, 0)

    def record_loss(self, loss: float) -> None:
        """Take the loss of an update."""
        if math.isfinite(loss):
            self._losses = self._losses[0] + loss, self._losses[1] + 1

    def step(self) -> None:
        self._steps += 1
        if self._steps % self.updates_per_epoch:
            return
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
            return
        total, count = self._losses
        self._losses = (0.0, 0)
        if count:
            self.scheduler.step(total / count)

    def state(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps; None where the number of steps says everything."""
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            return None
        keys = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch", "_last_lr")
        return {"steps": self._steps, "losses": list(self._losses), **{key: vars(self.scheduler)[key] for key in keys}}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        attributes = dict(state)
        total, count = attributes.pop("losses")
        self._steps, self._losses = attributes.pop("steps"), (float(total), int(count))
        vars(self.scheduler).update(attributes)
        for group, rate in zip(self.optimizer.param_groups, attributes["_last_lr"], strict=True):
            group["lr"] = rate


def follows_loss(schedule: LRSchedule, optimizer: Optimizer, steps: int) -> bool:
    """Return whether a schedule follows the loss, and not the number of `steps` that a training makes with it.

    Raises:
        JobError: the function returns no schedule, or one that ends before the training.
    """
    with users_code("lr_scheduler="):
        scheduler = schedule(optimizer)
    if not callable(getattr(scheduler, "step", None)):
        raise JobError(
            f"lr_scheduler= returned {type(scheduler).__name__}, which has no step(); return a scheduler of "
            "torch.optim.lr_scheduler"
        )
    if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < steps:
        raise JobError(
            f"lr_scheduler= returned a OneCycleLR of {scheduler.total_steps} steps, and the training makes {steps}; "
            "give it "
            f"total_steps={steps}"
        )
    return isinstance(scheduler, ReduceLROnPlateau)
