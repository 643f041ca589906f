"""Lets a module that was made in another process begin from the same parameters and buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.errors import JobError
from paceline.training.parameters.layout import state_tensors


def begin_from(module: nn.Module, values: Sequence[Tensor]) -> str:
    """Copy parameters and buffers, as `state_tensors` orders them, into a module; return what is to be said of it.

    Raises:
        JobError: the module has other parameters or buffers.
    """
    mine = state_tensors(module)
    if [tensor.shape for tensor in mine.values()] != [value.shape for value in values]:
        raise JobError(
            "model= makes a model with other parameters in this process than in the parent's; make the same model "
            "wherever it is called, or give the module itself"
        )
    other = [name for (name, tensor), value in zip(mine.items(), values, strict=True) if not _close(tensor, value)]
    with torch.no_grad():
        for tensor, value in zip(mine.values(), values, strict=True):
            tensor.copy_(value)
    if not other:
        return (
            "model= rounds otherwise in each process: the workers begin from the parameters that it made in this one. "
            "A replay or a resumed run may begin from other bits; to keep them, give the module itself"
        )
    return (
        f"model= makes another {other[0]} in each process: the workers begin from the parameters that it made in this "
        "one, and neither a replay nor a resumed run can make these again. Let its random numbers come from torch, "
        "random or NumPy's global generator, which are seeded, or give the module itself"
    )


def _close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors differ by rounding at most."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    bound = math.sqrt(torch.finfo(one.dtype).eps)
    largest = float(other.abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=bound, atol=bound * largest, equal_nan=True)
