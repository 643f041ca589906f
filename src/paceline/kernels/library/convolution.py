"""Convolutions by whichever algorithm was quickest, and their gradients, which are convolutions too.

y  = x * filters
dx = dy, with stride - 1 zeros between, * filters turned round, channels exchanged
df = x * dy, samples and channels exchanged
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paceline import user_cache
from paceline.errors import JobError
from paceline.kernels.build import abilities, folder
from paceline.kernels.library.native import long, native, pointer


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


# The ways to convolve. A new one is a row of ALGORITHMS: what it can do, the numbers it needs beside, and how.
#
# direct       four channels and three vectors of a row in registers; the image padded beside
# unrolled     what a filter sees becomes a column, and the convolution a matrix product
# winograd2    tiles of 2 x 2 outputs by 16 products in the place of 36; filters of 3 x 3, stride 1
# winograd4    tiles of 4 x 4 by 36 in the place of 144; loses about two digits
# fft          products of spectra, by PyTorch's FFT

# The shape of a convolution: x[n, c, h, w] with filters[k, c, r, s] makes y[n, k, p, q].


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


# Which way to convolve: each that fits is timed, the quickest is kept, and from then on the answer stays the same.
# Kept in the user's cache by shape, memory limit, threads and CPU, so a choice is made once on a machine. The cache
# is a file a choice; what two processes choose at the same time, one of them overwrites with the other's like.

ROUNDS = 5
LEAST = 2e-3  # seconds that a measurement of one algorithm lasts, at the least
FORMAT = 1


@dataclass(frozen=True)
class AlgorithmChoice:
    """The fastest way for a shape, and what was measured to find it."""

    algorithm: str
    seconds: dict[str, float]  # of each that was timed
    left_out: dict[str, str]  # and why the others were not

    def table(self, shape: Shape) -> str:
        lines = [f"{shape}: {self.algorithm}"]
        for name, seconds in sorted(self.seconds.items(), key=lambda pair: pair[1]):
            lines.append(f"  {name:10} {seconds * 1e6:9.1f} us  {shape.flop / seconds / 1e9:7.1f} GFLOP/s")
        return "\n".join([*lines, *(f"  {name:10} {why}" for name, why in self.left_out.items())])


@lru_cache(maxsize=4096)
def choose(shape: Shape, memory: int | None = None, threads: int = 1) -> AlgorithmChoice:
    """The quickest with at most so many bytes of memory beside x, filters and y."""
    file = _file(shape, memory, threads)
    choice = _read(file)
    if choice is None:
        choice = measured(shape, memory, threads)
        _write(file, choice)
    return choice


def measured(shape: Shape, memory: int | None = None, threads: int = 1) -> AlgorithmChoice:
    """Measures every way that fits, and chooses."""
    ways: dict[str, Callable[[], Tensor]] = {}
    left_out: dict[str, str] = {}
    x, filters = torch.randn(shape.n, shape.c, shape.h, shape.w), torch.randn(shape.k, shape.c, shape.r, shape.s)
    for name, algorithm in ALGORITHMS.items():
        if not algorithm.fits(shape):
            left_out[name] = "does not fit this shape"
        elif memory is not None and (needs := 4 * algorithm.workspace(shape, threads)) > memory:
            left_out[name] = f"needs {needs / 1e6:.1f} MB beside"
        else:
            ways[name] = lambda run=algorithm.run: run(shape, x, filters, threads)  # type: ignore[misc]
    if not ways:
        raise JobError(f"no way to convolve {shape} makes do with {memory} bytes: {left_out}")
    times = timed(ways)
    return AlgorithmChoice(min(times, key=lambda name: times[name]), times, left_out)


def timed(ways: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Seconds of a call of each: the median of rounds in which each is called once, one after another."""
    calls: dict[str, int] = {}
    for name, way in ways.items():
        way()
        start = time.perf_counter()
        way()
        calls[name] = max(1, int(LEAST / max(1e-7, time.perf_counter() - start)))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                way()
            seconds[name].append((time.perf_counter() - start) / calls[name])
    return {name: statistics.median(each) for name, each in seconds.items()}


def _file(shape: Shape, memory: int | None, threads: int) -> Path:
    """Where a choice is kept."""
    key = "\0".join(map(str, (FORMAT, shape, memory, threads, torch.__version__, abilities(), list(ALGORITHMS))))
    return folder() / "choices" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _read(file: Path) -> AlgorithmChoice | None:
    """A choice that was kept, or None if there is none that can be read."""
    try:
        fields = json.loads(user_cache.read(file))
        choice = AlgorithmChoice(fields["algorithm"], fields["seconds"], fields["left_out"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return choice if choice.algorithm in ALGORITHMS else None


def _write(file: Path, choice: AlgorithmChoice) -> None:
    """Keeps a choice on disk. If the cache cannot be written, the choice holds for this process alone."""
    with contextlib.suppress(OSError):
        user_cache.write(file, json.dumps(vars(choice)).encode())
