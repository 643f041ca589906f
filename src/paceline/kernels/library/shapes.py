"""The shape of a convolution: x[n, c, h, w] with filters[k, c, r, s] makes y[n, k, p, q]."""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from paceline.errors import JobError


def check_numbers(what: str, *tensors: Tensor) -> None:
    """Refuses what is not float32 on the CPU, since the C++ text reads it without a check."""
    for tensor in tensors:
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise JobError(f"{what} of this library takes float32 on the CPU, not {tensor.dtype} on {tensor.device}")


def threads_of(threads: int | None) -> int:
    """How many threads to use."""
    if threads is not None and threads < 1:
        raise JobError(f"threads={threads} is not at least 1")
    return threads or torch.get_num_threads()


@dataclass(frozen=True)
class Shape:
    """The sizes of a convolution."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int = 1
    pad: int = 0

    def __post_init__(self) -> None:
        if not all(isinstance(number, int) for number in astuple(self)):
            raise JobError(f"a convolution's sizes, stride and padding are whole numbers, the same both ways: {self}")
        if min(self.n, self.c, self.h, self.w, self.k, self.r, self.s, self.stride) < 1 or self.pad < 0:
            raise JobError(f"a convolution needs sizes of at least one, and no negative padding: {self}")
        if self.p < 1 or self.q < 1:
            raise JobError(f"the filter of {self.r} x {self.s} is larger than the padded image of {self}")

    @classmethod
    def of(cls, x: Tensor, filters: Tensor, stride: int, pad: int) -> Shape:
        if x.dim() != 4 or filters.dim() != 4 or x.shape[1] != filters.shape[1]:
            raise JobError(
                f"a convolution takes x[n, c, h, w] and filters[k, c, r, s], not {tuple(x.shape)} and "
                f"{tuple(filters.shape)}"
            )
        check_numbers("a convolution", x, filters)
        (n, c, h, w), (k, _, r, s) = x.shape, filters.shape
        return cls(n, c, h, w, k, r, s, stride, pad)

    @property
    def p(self) -> int:
        return (self.h + 2 * self.pad - self.r) // self.stride + 1

    @property
    def q(self) -> int:
        return (self.w + 2 * self.pad - self.s) // self.stride + 1

    @property
    def flop(self) -> int:
        """How many operations the direct way takes; other ways make do with fewer, or need more."""
        return 2 * self.n * self.k * self.p * self.q * self.c * self.r * self.s

    def __str__(self) -> str:
        x, f = f"{self.n}x{self.c}x{self.h}x{self.w}", f"{self.k}x{self.c}x{self.r}x{self.s}"
        return f"{x} * {f}, stride {self.stride}, padding {self.pad}"

    def struct(self) -> ctypes.Array[ctypes.c_long]:
        """The shape as the C++ text reads it."""
        numbers = (*astuple(self), self.p, self.q)
        return (ctypes.c_long * len(numbers))(*numbers)
