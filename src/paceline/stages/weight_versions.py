"""The weights of a stage in several versions, of which its forwards and backwards read one or another.

    one version        the parameters themselves; the optimizer changes them
    stashed (K)        a ring of K copies; `look` points the parameters at the one that is to be read
    predicted          the newest, and a copy to compute with: as the weights are expected to be some updates later

Where there are copies, the optimizer works on twins of the parameters. A graph that autograd keeps refers to the memory
that its forward read: in the ring it stays as it was until the version is dropped, which is proved to be late enough
(core.schedules.proof); predicted weights are overwritten on purpose, for backward reads the newest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.core.rules.plain import Plain
from paceline.errors import PlanError
from paceline.parameters.store import LocalStore, Optimizer, Schedule, optimizer_over


class Weights:
    copies = 1  # of the weights that lie in memory

    def __init__(self, parameters: list[nn.Parameter], optimizer: Optimizer, schedule: Schedule | None) -> None:
        self.parameters = parameters
        self.home = LocalStore(self.twins(), self._over(optimizer), schedule, Plain())

    def _over(self, optimizer: Optimizer) -> Optimizer:
        return optimizer_over(optimizer, dict(zip(self.parameters, self.masters, strict=True)))

    def twins(self) -> list[nn.Parameter]:
        self.masters = self.parameters
        return self.masters

    @property
    def newest(self) -> int:
        """The version that the optimizer made last, counted from the start of the training."""
        return self.home.updates

    def values(self) -> list[Tensor]:
        """Of the newest version."""
        return [p.detach() for p in self.masters]

    def look(self, version: int, ahead: int) -> None:
        """Let the parameters be this version; or what it is expected to be so many updates later."""

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        self.home.step(gradients)

    def go_on(self) -> None:
        """An earlier life's newest version was put in the place of this one's first."""


class Stashed(Weights):
    def __init__(
        self, parameters: list[nn.Parameter], optimizer: Optimizer, schedule: Schedule | None, keeps: int
    ) -> None:
        self.keeps, self.copies, self.seen = keeps, keeps, 0
        self.ring = [[p.detach().clone() for p in parameters] for _ in range(keeps)]
        super().__init__(parameters, optimizer, schedule)
        self._point(self.parameters, 0)

    def twins(self) -> list[nn.Parameter]:
        self.masters = [nn.Parameter(value) for value in self.ring[0]]
        return self.masters

    def look(self, version: int, ahead: int) -> None:
        if version != self.seen:
            self._point(self.parameters, version)
            self.seen = version

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        made = self.newest + 1
        torch._foreach_copy_(self.ring[made % self.keeps], self.ring[self.newest % self.keeps])
        self._point(self.masters, made)
        super().step(gradients)

    def go_on(self) -> None:
        for values in self.ring:
            for value, newest in zip(values, self.values(), strict=True):
                value.copy_(newest)
        self._point(self.masters, self.newest)
        self._point(self.parameters, self.newest)
        self.seen = self.newest

    def _point(self, parameters: list[nn.Parameter], version: int) -> None:
        for parameter, value in zip(parameters, self.ring[version % self.keeps], strict=True):
            parameter.data = value


class Predicted(Weights):
    copies = 2

    def __init__(self, parameters: list[nn.Parameter], optimizer: Optimizer, schedule: Schedule | None) -> None:
        self.work = [p.detach().clone() for p in parameters]
        super().__init__(parameters, optimizer, schedule)
        for parameter, value in zip(parameters, self.work, strict=True):
            parameter.data = value
        if not any(group.get("momentum") for group in optimizer.param_groups):
            raise PlanError(
                f"spectrain predicts weights from the optimizer's momentum, and {type(optimizer).__name__} has none as "
                "it is set; use torch.optim.SGD(momentum=...), or pipedream"
            )

    def twins(self) -> list[nn.Parameter]:
        self.masters = [nn.Parameter(p.detach().clone()) for p in self.parameters]
        return self.masters

    def look(self, version: int, ahead: int) -> None:
        torch._foreach_copy_(self.work, self.values())
        if not ahead:
            return
        optimizer = self.home.optimizer
        for group in optimizer.param_groups:
            for master in group["params"]:
                momentum = optimizer.state.get(master, {}).get("momentum_buffer")
                if momentum is not None:
                    self._work_of(master).add_(momentum, alpha=-ahead * group["lr"])

    def _work_of(self, master: nn.Parameter) -> Tensor:
        return self.work[next(place for place, mine in enumerate(self.masters) if mine is master)]


def weights_of(
    parameters: list[nn.Parameter], optimizer: Optimizer, schedule: Schedule | None, keeps: int, predicts: bool
) -> Weights:
    if predicts and parameters:
        return Predicted(parameters, optimizer, schedule)
    if keeps > 1 and parameters:
        return Stashed(parameters, optimizer, schedule, keeps)
    return Weights(parameters, optimizer, schedule)
