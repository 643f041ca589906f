"""A tensor as the row of numbers that the arithmetic and the mail work on."""

from __future__ import annotations

from torch import Tensor

from paceline.backend.calls import DTYPE_NUMBERS
from paceline.errors import UsageError


def flat(tensor: Tensor) -> Tensor:
    """Its own numbers, or a copy of them if they do not lie in one row; unseen by autograd (`data`), as with gloo."""
    if not tensor.is_cpu:
        raise UsageError(f"the paceline backend is for tensors on the CPU; this one is on {tensor.device}: use nccl")
    if tensor.is_sparse or tensor.dtype not in DTYPE_NUMBERS:
        kind = "sparse tensors" if tensor.is_sparse else f"{tensor.dtype}"
        raise UsageError(f"the paceline backend has no such operation on {kind}; make a group with gloo for it")
    return tensor.data.view(-1) if tensor.is_contiguous() else tensor.data.contiguous().view(-1)


def settle(tensor: Tensor, vector: Tensor) -> None:
    """Put a result where it belongs, if `flat` had to make a copy."""
    if not tensor.is_contiguous():
        tensor.data.copy_(vector.view(tensor.shape))
