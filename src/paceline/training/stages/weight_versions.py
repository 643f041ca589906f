"""The weights of a stage in the versions that its forwards and backwards read.

    OneVersion       the parameters themselves; the optimizer changes them
    StashedWeights   a ring of K copies; `show` points the parameters at the version to be read
    PredictedWeights the newest version, and a copy to compute with: the weights as expected some updates later

Where there are copies, the optimizer works on parameters of its own, the masters. A graph that autograd keeps refers to
the memory that its forward read. In the ring that memory stays until the version is dropped, which is proved to be late
enough (core.schedules.proof). Predicted weights are overwritten on purpose, since backward reads the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.algorithms.rules.gradients import Plain
from paceline.errors import PlanError
from paceline.training.parameters.optimizers import LRSchedule, Optimizer, optimizer_over
from paceline.training.parameters.store import LocalStore


class WeightVersions(Protocol):
    """Decides which memory the parameters and the optimizer's masters are views of."""

    #: The parameters that the optimizer steps.
    masters: list[nn.Parameter]
    #: How many copies of the weights there are in memory.
    copies: int

    def show(self, version: int, ahead: int, optimizer: Optimizer) -> None:
        """Let the parameters be this version, as it is expected to be `ahead` updates later."""

    def begin(self, newest: int) -> None:
        """Prepare the masters for the update that makes the version after `newest`."""

    def restored(self, newest: int) -> None:
        """Continue from the masters' values, which a checkpoint has replaced."""


class OneVersion:
    copies = 1

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.masters = parameters

    def show(self, version: int, ahead: int, optimizer: Optimizer) -> None:
        """The parameters are always the newest version."""

    def begin(self, newest: int) -> None:
        """The optimizer changes the parameters in place."""

    def restored(self, newest: int) -> None:
        """The parameters are the masters."""


class StashedWeights:
    """Holds the last `copies` versions; version v is at place v modulo `copies` of the ring."""

    def __init__(self, parameters: list[nn.Parameter], copies: int) -> None:
        self.parameters, self.copies, self.shown = parameters, copies, 0
        self.ring = [[p.detach().clone() for p in parameters] for _ in range(copies)]
        self.masters = [nn.Parameter(value) for value in self.ring[0]]
        self._point(parameters, 0)

    def show(self, version: int, ahead: int, optimizer: Optimizer) -> None:
        if version != self.shown:
            self._point(self.parameters, version)
            self.shown = version

    def begin(self, newest: int) -> None:
        torch._foreach_copy_(self.ring[(newest + 1) % self.copies], self.ring[newest % self.copies])
        self._point(self.masters, newest + 1)

    def restored(self, newest: int) -> None:
        for values in self.ring:
            for value, master in zip(values, self.masters, strict=True):
                value.copy_(master.detach())
        self._point(self.masters, newest)
        self._point(self.parameters, newest)
        self.shown = newest

    def _point(self, parameters: list[nn.Parameter], version: int) -> None:
        for parameter, value in zip(parameters, self.ring[version % self.copies], strict=True):
            parameter.data = value


class PredictedWeights:
    copies = 2

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.masters = [nn.Parameter(p.detach().clone()) for p in parameters]
        self.predicted = [p.detach().clone() for p in parameters]
        for parameter, value in zip(parameters, self.predicted, strict=True):
            parameter.data = value
        self._predicted_of = dict(zip(self.masters, self.predicted, strict=True))

    def show(self, version: int, ahead: int, optimizer: Optimizer) -> None:
        torch._foreach_copy_(self.predicted, [master.detach() for master in self.masters])
        if not ahead:
            return
        for group in optimizer.param_groups:
            for master in group["params"]:
                momentum = optimizer.state.get(master, {}).get("momentum_buffer")
                if momentum is not None:
                    self._predicted_of[master].add_(momentum, alpha=-ahead * group["lr"])

    def begin(self, newest: int) -> None:
        """The optimizer changes the masters in place."""

    def restored(self, newest: int) -> None:
        """The next `show` reads the masters."""


def check_momentum(optimizer: Optimizer) -> None:
    """Raise `PlanError` for an optimizer without the momentum from which weights are predicted."""
    if not any(group.get("momentum") for group in optimizer.param_groups):
        raise PlanError(
            f"spectrain predicts weights from the optimizer's momentum, and {type(optimizer).__name__} has none as "
            "it is set; use torch.optim.SGD(momentum=...), or pipedream"
        )


class Weights:
    """The weights of one stage, and the user's optimizer over them."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        schedule: LRSchedule | None,
        versions: WeightVersions,
    ) -> None:
        self.parameters, self.versions = parameters, versions
        over = optimizer_over(optimizer, dict(zip(parameters, versions.masters, strict=True)))
        self.store = LocalStore(versions.masters, over, schedule, Plain())

    def values(self) -> list[Tensor]:
        """Return the newest version."""
        return self.store.values

    def bind_version(self, version: int, ahead: int) -> None:
        """Let the parameters be this version, as it is expected to be `ahead` updates later."""
        self.versions.show(version, ahead, self.store.optimizer)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Make the next version."""
        self.versions.begin(self.store.updates)
        self.store.step(gradients)

    def restored(self) -> None:
        """Continue from the values and the number of updates that a checkpoint has put into the store."""
        self.versions.restored(self.store.updates)


def weights_of(
    parameters: list[nn.Parameter], optimizer: Optimizer, schedule: LRSchedule | None, copies: int, predicts: bool
) -> Weights:
    """Return a stage's weights with as many versions as its schedule needs."""
    versions: WeightVersions = OneVersion(parameters)
    if predicts and parameters:
        versions = PredictedWeights(parameters)
    elif copies > 1 and parameters:
        versions = StashedWeights(parameters, copies)
    return Weights(parameters, optimizer, schedule, versions)
