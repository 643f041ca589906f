"""Which way to convolve: each that fits is timed, the quickest is kept, and from then on the answer stays the same.

Kept in the user's cache by shape, memory limit, threads and CPU, so a choice is made once on a machine. The cache is a
file a choice; what two processes choose at the same time, one of them overwrites with the other's like.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from paceline import user_cache
from paceline.errors import JobError
from paceline.kernels.build import abilities, folder
from paceline.kernels.library.algorithms import ALGORITHMS
from paceline.kernels.library.shapes import Shape

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
