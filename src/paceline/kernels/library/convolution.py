"""A convolution by whichever algorithm was quickest, and its gradients, which are convolutions too.

y  = x * filters
dx = dy, with stride - 1 zeros between, * filters turned round, channels exchanged
df = x * dy, samples and channels exchanged
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import JobError
from paceline.kernels.library.algorithms import ALGORITHMS
from paceline.kernels.library.shapes import Shape, threads_of
from paceline.kernels.library.tuner import choose


def conv2d(
    x: Tensor,
    filters: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    algorithm: str | None = None,
    memory: int | None = None,
    threads: int | None = None,
) -> Tensor:
    """Convolves as torch.nn.functional.conv2d does, in float32 on the CPU.

    Without `algorithm` the tuner chooses, for the way back too, among those that need at most `memory` bytes beside. It
    also chooses for the shapes of the way back that `algorithm` does not take.
    """
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise JobError(f"there is no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    shape = Shape.of(x, filters, stride, padding)
    if algorithm is not None and not ALGORITHMS[algorithm].fits(shape):
        raise JobError(f"{algorithm} does not take {shape}")
    how = (algorithm, memory, threads_of(threads))
    y: Tensor = _Convolution.apply(x, filters, stride, padding, *how)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias[:, None, None]


def convolve(
    x: Tensor, filters: Tensor, stride: int, pad: int, algorithm: str | None, memory: int | None, threads: int
) -> Tensor:
    shape = Shape.of(x, filters, stride, pad)
    name = algorithm if algorithm and ALGORITHMS[algorithm].fits(shape) else choose(shape, memory, threads).algorithm
    return ALGORITHMS[name].run(shape, x.contiguous(), filters.contiguous(), threads)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, filters: Tensor, stride: int, pad: int, *how: Any) -> Tensor:
        ctx.save_for_backward(x, filters)
        ctx.stride, ctx.pad, ctx.how = stride, pad, how
        return convolve(x, filters, stride, pad, *how)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x, filters), (dy,) = ctx.saved_tensors, gradients
        dx = _to_input(dy, x, filters, ctx) if ctx.needs_input_grad[0] else None
        df = _to_filters(dy, x, filters, ctx) if ctx.needs_input_grad[1] else None
        return dx, df, None, None, None, None, None


def _to_input(dy: Tensor, x: Tensor, filters: Tensor, ctx: Any) -> Tensor:
    """Each y is spread back over what it saw: a convolution over dy with rims wide enough."""
    (r, s), (h, w) = filters.shape[2:], x.shape[2:]
    spread = _spread(dy, ctx.stride)
    below, right = (h + ctx.pad - spread.shape[2], w + ctx.pad - spread.shape[3])
    rims = functional.pad(spread, (s - 1 - ctx.pad, right, r - 1 - ctx.pad, below))
    return convolve(rims, filters.flip(2, 3).transpose(0, 1), 1, 0, *ctx.how)


def _to_filters(dy: Tensor, x: Tensor, filters: Tensor, ctx: Any) -> Tensor:
    """The inputs that each filter saw, weighted by dy: a convolution of whole images, cut to the filter's taps."""
    r, s = filters.shape[2:]
    spread = _spread(dy, ctx.stride)
    padded = functional.pad(x, [ctx.pad] * 4)[:, :, : spread.shape[2] + r - 1, : spread.shape[3] + s - 1]
    return convolve(padded.transpose(0, 1), spread.transpose(0, 1), 1, 0, *ctx.how).transpose(0, 1)


def _spread(dy: Tensor, stride: int) -> Tensor:
    """The same images with stride - 1 zeros between neighbours."""
    if stride == 1:
        return dy
    n, k, p, q = dy.shape
    spread = dy.new_zeros(n, k, (p - 1) * stride + 1, (q - 1) * stride + 1)
    spread[:, :, ::stride, ::stride] = dy
    return spread
