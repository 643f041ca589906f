"""A tensor as the row of numbers that the arithmetic and the mail work on."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.backend.calls import DTYPE_NUMBERS


class NotOurs(Exception):
    """A tensor that another backend must take; raised before anything has happened."""

    def __init__(self, device: str, what: str) -> None:
        self.device, self.what = device, what
        super().__init__(f"the paceline backend has no operations on {what}")


def flat(tensor: Tensor) -> Tensor:
    """Its own numbers, or a copy of them if they do not lie in one row; unseen by autograd (`data`), as with gloo."""
    if not tensor.is_cpu:
        raise NotOurs(tensor.device.type, f"tensors on {tensor.device.type}")
    if tensor.layout != torch.strided or tensor.dtype not in DTYPE_NUMBERS:
        what = f"{tensor.dtype} tensors" if tensor.layout == torch.strided else "sparse tensors"
        raise NotOurs("cpu", what)
    return tensor.data.view(-1) if tensor.is_contiguous() else tensor.data.contiguous().view(-1)


def settle(tensor: Tensor, vector: Tensor) -> None:
    """Put a result where it belongs, if `flat` had to make a copy."""
    if not tensor.is_contiguous():
        tensor.data.copy_(vector.view(tensor.shape))
