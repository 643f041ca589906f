"""A shard that is stepped as one tensor, which takes as few calls as one parameter does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.training.parameters.optimizers import Optimizer, bare_step, has_hooks, optimizer_over


class WholeStep:
    """Steps all parameters of a shard together, as the user's optimizer would step each of them.

    This is for optimizers that do the same to every number and remember nothing: all numbers then have the bits that
    a step of one parameter after another gives them.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        #: The group whose settings a schedule changes.
        (self._group,) = [group for group in optimizer.param_groups if group["params"]]
        first = self._group["params"][0]
        self._whole = nn.Parameter(torch.zeros(1, dtype=first.dtype))
        self._optimizer = optimizer_over(optimizer, {first: self._whole})
        (self._mine,) = [group for group in self._optimizer.param_groups if group["params"]]
        self._step = bare_step(self._optimizer)

    @staticmethod
    def of(optimizer: Optimizer) -> WholeStep | None:
        """Return what steps a shard with this optimizer; None where parameters have to be stepped one by one."""
        groups = [group for group in optimizer.param_groups if group["params"]]
        if type(optimizer) is not torch.optim.SGD or len(groups) != 1 or has_hooks(optimizer):
            return None
        return WholeStep(optimizer) if not groups[0]["momentum"] else None

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Step the parameters that lie in one vector, by gradients that lie alike in another."""
        self._mine.update(self._group, params=[self._whole])
        self._whole.data, self._whole.grad = parameters, gradients
        self._step()
        self._whole.grad = None
