"""The search over width, precision and kernel: every candidate is retrained, made, checked and measured.

    widths       the model is narrowed step by step, each step retrained by the run's own job, from the one before
    precisions   float32, int8, int4, and the two with shared exponents, each evaluated on validation data
    kernels      how it is computed, as text in C; each is compiled, compared with its reference and timed

Nothing is timed while anything is compiled, and calls of all candidates are timed in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.compression.building import Latency
from paceline.compression.emission.c_file import CFile
from paceline.compression.integers import IntegerNetwork, Precision, integers
from paceline.compression.network import Network
from paceline.compression.points import Point
from paceline.compression.pruning import narrowed, prunable
from paceline.compression.reading import graph_of, read
from paceline.compression.reference import IntegerModel
from paceline.compression.samples import Division, Samples
from paceline.compression.values import ranges

WIDTHS = (1.0, 0.75, 0.55, 0.42, 0.32, 0.24, 0.18)
PRECISIONS = (None, Precision(8), Precision(4), Precision(8, True), Precision(4, True))
FLOAT32 = "float32"
BATCH = 1000

Retrain = Callable[[nn.Module], nn.Module]
Say = Callable[[str], None]


class Target(Protocol):
    """The machine that a network is made for."""

    @property
    def name(self) -> str: ...

    def files(self, network: Network, made: IntegerNetwork | None, samples: Tensor) -> Iterator[tuple[str, CFile]]:
        """Yield (kernel, C file) for each way of computing a network in whole numbers, or in float32."""
        ...

    def measure(self, made: Sequence[Made], samples: Tensor) -> list[Measured]:
        """Compare each file's results with those of its module, and return what it needs."""
        ...


@dataclass(frozen=True)
class Made:
    """A C file, and the module that gives the same results."""

    kernel: str
    file: CFile
    network: Network
    module: nn.Module


@dataclass(frozen=True)
class Measured:
    """What a file needs: bytes, and the time of a call here or the instructions there."""

    size: int
    latency: Latency | None = None
    instructions: int | None = None
    #: Bytes of the stack; 0 where they were not measured.
    stack: int = 0


@dataclass(frozen=True)
class Candidate:
    """A network in one precision, before it is measured."""

    width: float
    network: Network
    whole: IntegerNetwork | None
    accuracy: float
    #: The model in float32.
    trained: nn.Module

    @property
    def module(self) -> nn.Module:
        """What computes in PyTorch what the C file computes."""
        return self.trained if self.whole is None else IntegerModel(self.whole)

    @property
    def precision(self) -> str:
        return FLOAT32 if self.whole is None else str(self.whole.precision)


@dataclass(frozen=True)
class Found:
    """All points, each with the candidate that it was made of."""

    points: tuple[Point, ...]
    candidates: tuple[Candidate, ...]
    trained: float


def search(
    module: nn.Module, division: Division, retrain: Retrain, target: Target, say: Say,
    widths: Sequence[float] = WIDTHS,
) -> Found:  # fmt: skip
    """Make and measure all candidates. `trained` is the accuracy of the model as it was."""
    trained = accuracy(module, division.validation)
    say(f"the trained model answers {trained:.2%} of {len(division.validation):,} validation samples right")
    candidates: list[Candidate] = []
    for width, narrow in _widths(module, division, retrain, say, widths):
        candidates += _precisions(width, narrow, division)
        best = max(each.accuracy for each in candidates if each.width == width)
        say(f"width {width:g}: {best:.2%}")
    samples = division.validation.x
    made = [
        (each, Made(kernel, file, each.network, each.module))
        for each in candidates
        for kernel, file in target.files(each.network, each.whole, samples)
    ]
    say(f"compiling and measuring {len(made)} forms")
    measured = target.measure([one for _, one in made], samples)
    points = tuple(
        Point(
            each.width, each.precision, one.kernel, each.accuracy, needs.size, one.file.memory + needs.stack, one.file,
            needs.latency, needs.instructions,
        )
        for (each, one), needs in zip(made, measured, strict=True)
    )  # fmt: skip
    return Found(points, tuple(each for each, _ in made), trained)


def _widths(
    module: nn.Module, division: Division, retrain: Retrain, say: Say, widths: Sequence[float]
) -> Iterator[tuple[float, nn.Module]]:
    """Yield (part of the channels, a module of that width), each narrowed from the one before and retrained."""
    whole = {each.module: each.channels for each in prunable(graph_of(module, tuple(division.ranges.x.shape[1:])))}
    before = dict(whole)
    for width in sorted(widths, reverse=True):
        wanted = {name: max(round(width * channels), 1) for name, channels in whole.items()}
        if wanted == before and width < 1:
            continue  # nothing can be narrowed, or not by so little
        if wanted != before:
            graph = graph_of(module, tuple(division.ranges.x.shape[1:]))
            say(f"retraining at width {width:g}: {', '.join(map(str, wanted.values()))} channels")
            module = retrain(narrowed(module, graph, wanted, division.ranges.x[:BATCH]))
        before = wanted
        yield width, module


def _precisions(width: float, module: nn.Module, division: Division) -> Iterator[Candidate]:
    network = read(module, tuple(division.ranges.x.shape[1:]))
    found = ranges(network, division.ranges.x)
    for precision in PRECISIONS:
        whole = None if precision is None else integers(network, found, precision)
        candidate = Candidate(width, network, whole, 0.0, module)
        yield replace(candidate, accuracy=accuracy(candidate.module, division.validation))


@torch.no_grad()
def accuracy(module: nn.Module, samples: Samples) -> float:
    """The share of samples whose highest score is that of their label."""
    was_training = module.training
    module.eval()
    right = 0
    for x, y in zip(samples.x.split(BATCH), samples.y.split(BATCH), strict=True):
        right += int((module(x).argmax(1) == y).sum())
    module.train(was_training)
    return right / len(samples)
