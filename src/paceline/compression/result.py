"""What a compression found: the points, their frontier, and the network that the bounds chose."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from paceline.compression.building import Latency
from paceline.compression.emission.c_file import CFile
from paceline.compression.integers import IntegerNetwork
from paceline.compression.network import LayerProgram, Network
from paceline.compression.onnx_file import onnx_model
from paceline.compression.samples import Loss
from paceline.errors import RunFolderError, UsageError


@dataclass(frozen=True)
class Compression:
    """The result of a compression, as `paceline.compress` returns it."""

    job: str
    target: str
    bounds: Bounds
    #: Every network that was made, and the one that was chosen; None if none is within the bounds.
    points: tuple[Point, ...]
    chosen: Point | None
    #: The share of right answers of the trained model: on validation data, and on test data if the job has some.
    trained: float
    trained_on_test: float | None = None
    #: That of the chosen network on test data, which nothing before has seen.
    on_test: float | None = None
    #: Computes in PyTorch what the C file computes; None if no network was chosen.
    model: nn.Module | None = None
    #: The chosen network as data, and its whole numbers; None where it is in float32.
    network: Network | LayerProgram | None = None
    whole: IntegerNetwork | None = None
    #: Some samples of validation.
    samples: Tensor | None = None
    seconds: float = 0.0

    @property
    def frontier(self) -> list[Point]:
        """The points that no other one beats in accuracy, size and cost."""
        return frontier(self.points)

    @property
    def lost(self) -> float | None:
        """The points of accuracy lost on test data; None without test data or without a network."""
        if self.on_test is None or self.trained_on_test is None:
            return None
        return 100 * (self.trained_on_test - self.on_test)

    @property
    def kept_promise(self) -> bool | None:
        """Whether the bound on accuracy also holds on test data."""
        return None if self.lost is None else self.lost <= self.bounds.within + 1e-9

    def save(self, file: str | Path) -> None:
        """Write the chosen network's C file."""
        if self.chosen is None:
            raise RunFolderError(f"there is no network within the bounds, so {file} is not written; see `frontier`")
        draft = Path(f"{file}.new")
        try:
            draft.write_text(self.chosen.file.text, encoding="utf-8")
            os.replace(draft, file)
        finally:
            draft.unlink(missing_ok=True)

    def onnx(self) -> bytes:
        """Return the chosen network as ONNX, with its quantisation; needs the package onnx."""
        if self.network is None:
            raise UsageError("there is no network within the bounds to write as ONNX")
        if isinstance(self.network, LayerProgram):
            raise UsageError(f"this network is not written as ONNX: {self.network.why}; torch.onnx.export writes it")
        return onnx_model(self.network, self.whole)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, as `paceline compress --json` prints them."""
        return {
            "job": self.job,
            "target": self.target,
            "within": self.bounds.within,
            "confidence": self.bounds.confidence,
            "latency_bound": self.bounds.latency,
            "size_bound": self.bounds.size,
            "trained": {"validation_accuracy": self.trained, "test_accuracy": self.trained_on_test},
            "chosen": self.chosen and {**self.chosen.as_dict(), "test_accuracy": self.on_test},
            "points_lost_on_test": self.lost,
            "frontier": [point.as_dict() for point in self.frontier],
            "points": [point.as_dict() for point in self.points],
            "seconds": self.seconds,
        }


# The points of a search, the frontier among them, and the one that the bounds choose.

# Bounds as users write them: `5us`, `0.2ms`, `16KB`, `110k`.

TIMES = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
SIZES = {"": 1, "b": 1, "kb": 1000, "kib": 1024, "mb": 10**6, "mib": 2**20}
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6}


def latency(bound: str | float | None, instructions: bool = False) -> float | None:
    """Return microseconds, or the number of instructions; a plain number is one of either."""
    units = COUNTS if instructions else TIMES
    example = "110k instructions (--for cortex-m4 counts these)" if instructions else "5us or 0.2ms"
    if not isinstance(bound, str):
        return _positive(bound, "latency", example)
    return _positive(_read(bound, units, "latency", example), "latency", example)


def size(bound: str | int | None) -> int | None:
    """Return bytes."""
    if not isinstance(bound, str):
        number = _positive(bound, "size", "16KB")
    else:
        number = _positive(_read(bound, SIZES, "size", "16KB"), "size", "16KB")
    return None if number is None else int(number)


def _read(text: str, units: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zµ]*)\s*", text.lower())
    if match is None or match[2] not in units:
        raise UsageError(f"{what}={text!r} is not understood; write it as in {example}")
    return float(match[1]) * units[match[2]]


def _positive(value: float | None, what: str, example: str) -> float | None:
    if value is not None and not value > 0:
        raise UsageError(f"{what}={value} is not positive; write it as in {example}")
    return value


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Bounds:
    """What a user asks of a network: points of accuracy below the trained one, microseconds of a call, and bytes."""

    within: float = 0.5
    latency: float | None = None
    size: int | None = None
    #: How sure it has to be that the accuracy is within its bound; 0.5 takes the validation samples' word for it.
    confidence: float = CONFIDENCE

    def broken(self, lost: Loss, cost: float, size: int) -> list[str]:
        """Return which bounds are broken by these figures."""
        over = {
            "accuracy": lost.most(self.confidence) > self.within + 1e-9,
            "latency": self.latency is not None and cost > self.latency,
            "size": self.size is not None and size > self.size,
        }
        return [name for name, broken in over.items() if broken]

    def faults(self, point: Point) -> list[str]:
        """Return which bounds a point does not keep."""
        return self.broken(point.lost, point.cost, point.size)


@dataclass(frozen=True)
class Point:
    """One network that was made and measured."""

    #: The part of the model's channels that it has.
    width: float
    precision: str
    kernel: str
    #: The accuracy on validation data, and what it lacks of the trained model's.
    accuracy: float
    lost: Loss
    #: Bytes of code and constants; and of values between layers, with the stack where that was measured.
    size: int
    memory: int
    file: CFile
    #: Of a call on this machine; None for another one.
    latency: Latency | None = None
    #: Of a call on a Cortex-M4.
    instructions: int | None = None

    @property
    def cost(self) -> float:
        """What a call costs: microseconds here, or instructions there."""
        if self.latency is not None:
            return self.latency.p50
        return float(self.instructions or 0)

    def as_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            name: getattr(self, name) for name in ("width", "precision", "kernel", "accuracy", "size", "memory")
        }
        fields |= {"points_lost": self.lost.points, "points_lost_error": self.lost.error}
        if self.latency is not None:
            fields |= {"p50_us": self.latency.p50, "p99_us": self.latency.p99}
        if self.instructions is not None:
            fields["instructions"] = self.instructions
        return fields


def frontier(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other one beats in accuracy, size and cost, the most accurate ones first."""
    undominated = [each for each in points if not any(_beats(other, each) for other in points)]
    return sorted(undominated, key=lambda point: (-point.accuracy, point.cost))


def _beats(one: Point, other: Point) -> bool:
    ahead = (one.accuracy >= other.accuracy, one.size <= other.size, one.cost <= other.cost)
    return all(ahead) and (one.accuracy, one.size, one.cost) != (other.accuracy, other.size, other.cost)


def choose(points: Sequence[Point], bounds: Bounds) -> Point | None:
    """Return the cheapest call among the points within the bounds; of equal ones, the smallest."""
    within = [point for point in points if not bounds.faults(point)]
    return min(within, key=lambda point: (point.cost, point.size), default=None)
