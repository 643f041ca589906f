"""SGD, Adam and AdamW for several members at once: each member is a row of a matrix, with settings of its own.

The formulas are those of torch.optim, element by element, so that a row has the numbers of its own optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.training.gradients.stacks.stacking import CannotStack

#: Flags of an optimizer that change what it computes, and are not known here.
UNKNOWN = ("maximize", "amsgrad", "capturable", "differentiable")


class RowOptimizer(Protocol):
    """Steps all rows of a matrix of parameters."""

    #: What is remembered between steps: matrices of the parameters' shape.
    memory: list[Tensor]

    def step(self, values: Tensor, gradient: Tensor, updates: int) -> None:
        """Change the values, by a gradient that may be overwritten. `updates` were made before."""


class Settings:
    """The settings of the members' optimizers, as columns, or as matrices where groups of parameters differ.

    They are in double precision, since what is left of 1 - 0.999 in single precision is not what torch.optim computes.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], like: Tensor) -> None:
        self.groups = [optimizer.param_groups for optimizer in optimizers]
        self.sizes = [sum(p.numel() for p in group["params"]) for group in self.groups[0]]
        self.like = like

    def column(self, name: str, place: int | None = None) -> Tensor:
        """Return a setting of all members; `place` is where it lies in a setting that is a tuple."""

        def value(group: dict[str, Any]) -> float:
            return float(group[name] if place is None else group[name][place])

        rows = [[value(group) for group in groups] for groups in self.groups]
        tensor = torch.tensor(rows, dtype=torch.float64)
        return tensor if tensor.shape[1] == 1 else tensor.repeat_interleave(torch.tensor(self.sizes), 1)


class RowSgd:
    """SGD with momentum."""

    def __init__(self, settings: Settings) -> None:
        lr, decay, momentum, dampening = (
            settings.column(name).to(settings.like.dtype) for name in ("lr", "weight_decay", "momentum", "dampening")
        )
        self.lr, self.decay, self.momentum = lr, decay, momentum
        self.nesterov = settings.column("nesterov").bool()
        self.taken = torch.where(momentum == 0, 1.0, 1 - dampening)  # without momentum there is no dampening
        self.memory = [torch.zeros_like(settings.like)] if bool(self.momentum.any()) else []

    def step(self, values: Tensor, gradient: Tensor, updates: int) -> None:
        gradient.addcmul_(values, self.decay)
        if not self.memory:
            values.addcmul_(gradient, -self.lr)
            return
        (momentum,) = self.memory
        momentum.mul_(self.momentum).addcmul_(gradient, self.taken if updates else torch.ones_like(self.taken))
        ahead = torch.addcmul(gradient, momentum, self.momentum)
        values.addcmul_(torch.where(self.nesterov, ahead, momentum), -self.lr)


class RowAdam:
    """Adam, whose decay of weights is part of the gradient, and AdamW, which decays the weights themselves."""

    def __init__(self, settings: Settings, decoupled: bool) -> None:
        self.lr, self.decay, self.eps = (settings.column(name) for name in ("lr", "weight_decay", "eps"))
        self.beta1, self.beta2 = settings.column("betas", 0), settings.column("betas", 1)
        self.decoupled, self.dtype = decoupled, settings.like.dtype
        self.memory = [torch.zeros_like(settings.like), torch.zeros_like(settings.like)]

    def step(self, values: Tensor, gradient: Tensor, updates: int) -> None:
        mean, square = self.memory
        if self.decoupled:
            values.mul_(self._cast(1 - self.lr * self.decay))
        else:
            gradient.addcmul_(values, self._cast(self.decay))
        mean.lerp_(gradient, self._cast(1 - self.beta1).expand_as(gradient))
        square.mul_(self._cast(self.beta2)).addcmul_(gradient * gradient, self._cast(1 - self.beta2))
        root = square.sqrt().div_(self._cast((1 - self.beta2 ** (updates + 1)).sqrt())).add_(self._cast(self.eps))
        values.addcdiv_(mean * self._cast(-self.lr / (1 - self.beta1 ** (updates + 1))), root)

    def _cast(self, column: Tensor) -> Tensor:
        return column.to(self.dtype)


def row_optimizer(optimizers: Sequence[torch.optim.Optimizer], like: Tensor) -> RowOptimizer:
    """Return the optimizer of all rows of a matrix like this one. Raise CannotStack for other kinds."""
    kind = type(optimizers[0])
    for group in optimizers[0].param_groups:
        for flag in UNKNOWN:
            if group.get(flag):
                raise CannotStack(f"{flag}=True of {kind.__name__} is not vectorised")
    settings = Settings(optimizers, like)
    if kind is torch.optim.SGD:
        return RowSgd(settings)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = kind is torch.optim.AdamW or bool(optimizers[0].param_groups[0].get("decoupled_weight_decay"))
        return RowAdam(settings, decoupled)
    raise CannotStack(f"{kind.__name__} is not vectorised; SGD, Adam and AdamW are")
