"""A tensor as the vector of numbers that collectives and messages work on."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.runtime.backend.calls import DTYPE_NUMBERS


class Unsupported(Exception):
    """A tensor that another backend must take; raised before anything has happened."""

    def __init__(self, device: str, what: str) -> None:
        self.device, self.what = device, what
        super().__init__(f"the paceline backend has no operations on {what}")


def flat(tensor: Tensor) -> Tensor:
    """Return a view of the tensor's numbers, or a copy if they are not contiguous; unseen by autograd, as with gloo."""
    if not tensor.is_cpu:
        raise Unsupported(tensor.device.type, f"tensors on {tensor.device.type}")
    if tensor.layout != torch.strided or tensor.dtype not in DTYPE_NUMBERS:
        what = f"{tensor.dtype} tensors" if tensor.layout == torch.strided else "sparse tensors"
        raise Unsupported("cpu", what)
    return tensor.data.view(-1) if tensor.is_contiguous() else tensor.data.contiguous().view(-1)


def copy_back(tensor: Tensor, vector: Tensor) -> None:
    """Copy a result into the tensor, if `flat` had to make a copy of it."""
    if not tensor.is_contiguous():
        tensor.data.copy_(vector.view(tensor.shape))
