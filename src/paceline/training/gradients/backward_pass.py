"""The backward pass of PyTorch from roots whose gradients are given.

`torch.autograd.backward` compares the shapes of gradients and roots by a module that imports SymPy, which takes more
than a second in every process, and some microseconds in every pass. The engine in C++ compares them, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward as run_engine


def backward(roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Add what roots with these gradients give to the gradients of what they were computed from."""
    if all(type(root) is Tensor for root in roots):
        run_engine(tuple(roots), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)
    else:  # a class of its own may define its backward pass
        torch.autograd.backward(roots, gradients)


def backward_from(loss: Tensor, weight: float = 1.0) -> None:
    """Add weight x gradient of a loss. Seeding the pass with the weight saves scaling the gradients afterwards."""
    if weight == 1.0:
        loss.backward()
    else:
        backward([loss], [torch.full_like(loss, weight)])


def gradients_of(
    inputs: Sequence[Tensor], roots: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Return what roots with these gradients give to each wanted tensor; None for one that they do not depend on."""
    if all(type(root) is Tensor for root in roots):
        return run_engine(tuple(roots), tuple(gradients), False, False, tuple(inputs), True, accumulate_grad=False)
    return torch.autograd.grad(roots, inputs, gradients, allow_unused=True)
