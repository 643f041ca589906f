"""The ways to convolve. A new one is a row of ALGORITHMS: what it can do, the numbers it needs beside, and how.

direct       four channels and three vectors of a row in registers; the image padded beside
unrolled     what a filter sees becomes a column, and the convolution a matrix product
winograd2    tiles of 2 x 2 outputs by 16 products in the place of 36; filters of 3 x 3, stride 1
winograd4    tiles of 4 x 4 by 36 in the place of 144; loses about two digits
fft          products of spectra, by PyTorch's FFT
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.kernels.library.native import long, native, pointer
from paceline.kernels.library.shapes import Shape


class Algorithm(NamedTuple):
    """A way to convolve: which shapes it fits, the memory it needs, how it is run."""

    fits: Callable[[Shape], bool]
    workspace: Callable[[Shape, int], int]  # numbers beside x, filters and y, with so many threads
    run: Callable[[Shape, Tensor, Tensor, int], Tensor]


def _native(name: str, threaded: bool = True) -> tuple[Callable[[Shape, int], int], Callable[..., Tensor]]:
    def workspace(shape: Shape, threads: int) -> int:
        count = getattr(native(), f"{name}_workspace")
        return int(count(shape.struct(), long(threads)) if threaded else count(shape.struct()))

    def run(shape: Shape, x: Tensor, filters: Tensor, threads: int) -> Tensor:
        y, space = torch.empty(shape.n, shape.k, shape.p, shape.q), torch.empty(workspace(shape, threads))
        getattr(native(), name)(shape.struct(), pointer(x), pointer(filters), pointer(y), pointer(space), long(threads))
        return y

    return workspace, run


def _fft_sizes(shape: Shape) -> tuple[int, int]:
    """The sizes of a transform that holds the padded image, products of small primes."""
    return _smooth(shape.h + 2 * shape.pad), _smooth(shape.w + 2 * shape.pad)


def _smooth(size: int) -> int:
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 1


def _fft_workspace(shape: Shape, threads: int) -> int:
    down, across = _fft_sizes(shape)
    spectra = shape.n * shape.c + shape.k * shape.c + shape.n * shape.k
    return 2 * 2 * spectra * down * (across // 2 + 1)  # complex numbers, and each laid out for the products


def _fft(shape: Shape, x: Tensor, filters: Tensor, threads: int) -> Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        size = _fft_sizes(shape)
        padded = torch.nn.functional.pad(x, [shape.pad] * 4) if shape.pad else x
        images, masks = torch.fft.rfft2(padded, s=size), torch.fft.rfft2(filters, s=size).conj()
        products = torch.matmul(images.permute(2, 3, 0, 1), masks.permute(2, 3, 1, 0))  # [., ., n, c] by [., ., c, k]
        full_output: Tensor = torch.fft.irfft2(products.permute(2, 3, 0, 1), s=size)
        steps, last = shape.stride, ((shape.p - 1) * shape.stride + 1, (shape.q - 1) * shape.stride + 1)
        return full_output[:, :, : last[0] : steps, : last[1] : steps].contiguous()
    finally:
        torch.set_num_threads(before)


def _anything(shape: Shape) -> bool:
    return True


def _three_by_three(shape: Shape) -> bool:
    return (shape.r, shape.s, shape.stride) == (3, 3, 1)


ALGORITHMS: dict[str, Algorithm] = {
    "direct": Algorithm(_anything, *_native("direct", threaded=False)),
    "unrolled": Algorithm(_anything, *_native("unrolled")),
    "winograd2": Algorithm(_three_by_three, *_native("winograd2")),
    "winograd4": Algorithm(_three_by_three, *_native("winograd4")),
    "fft": Algorithm(_anything, _fft_workspace, _fft),
}
