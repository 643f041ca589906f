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

from torch import Tensor, nn

from paceline.compression.building import Latency
from paceline.compression.emission.c_file import CFile
from paceline.compression.integers import IntegerModel, IntegerNetwork, Precision, integers, ranges
from paceline.compression.network import LayerProgram, Network
from paceline.compression.pruning import narrowed, prunable
from paceline.compression.reading import graph_of, network_of
from paceline.compression.result import Point
from paceline.compression.samples import Division, Loss, Score, loss_between

WIDTHS = (1.0, 0.75, 0.55, 0.42, 0.32, 0.24, 0.18)
PRECISIONS = (Precision(8), Precision(4), Precision(8, True), Precision(4, True))
FLOAT32 = "float32"
NOTHING_LOST = Loss(0.0)
BATCH = 1000

Retrain = Callable[[nn.Module], nn.Module]
Say = Callable[[str], None]


class Target(Protocol):
    """The machine that a network is made for."""

    @property
    def name(self) -> str: ...

    def takes(self, network: Network | LayerProgram) -> None:
        """Raise if no form of a network can be made."""
        ...

    def files(self, candidate: Candidate, samples: Tensor) -> Iterator[tuple[str, CFile]]:
        """Yield (kernel, C file) for each way of computing a candidate."""
        ...

    def measure(self, forms: Sequence[Made], samples: Tensor) -> list[Measurement]:
        """Compare each file's results with those of its module, and return what it needs."""
        ...


@dataclass(frozen=True)
class Made:
    """A C file, and the module that gives the same results."""

    kernel: str
    file: CFile
    network: Network | LayerProgram
    module: nn.Module


@dataclass(frozen=True)
class Measurement:
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
    network: Network | LayerProgram
    whole: IntegerNetwork | None
    #: The model in float32.
    trained: nn.Module
    #: On validation data.
    accuracy: float = 0.0
    lost: Loss = NOTHING_LOST

    @property
    def module(self) -> nn.Module:
        """What computes in PyTorch what the C file computes."""
        return self.trained if self.whole is None else IntegerModel(self.whole)

    @property
    def precision(self) -> str:
        return FLOAT32 if self.whole is None else str(self.whole.precision)


@dataclass(frozen=True)
class SearchResult:
    """All points, each with the candidate that it was made of."""

    points: tuple[Point, ...]
    candidates: tuple[Candidate, ...]
    trained: float


def search(
    module: nn.Module,
    division: Division,
    score: Score,
    retrain: Retrain,
    target: Target,
    say: Say,
    widths: Sequence[float] = WIDTHS,
) -> SearchResult:
    """Make and measure all candidates. `trained` is the accuracy of the model as it was."""
    trained = score.each(module, division.validation)
    share = float(trained.mean())
    say(f"the trained model {score.says.format(f'{share:.2%}', f'{len(trained):,} validation samples')}")
    candidates: list[Candidate] = []
    for width, narrow in _widths(module, division, retrain, say, widths):
        for each in _precisions(width, narrow, division):
            scores = score.each(each.module, division.validation)
            candidates.append(replace(each, accuracy=float(scores.mean()), lost=loss_between(trained, scores)))
        best = max(each.accuracy for each in candidates if each.width == width)
        say(f"width {width:g}: {best:.2%}")
    if isinstance(network := candidates[0].network, LayerProgram):
        say(f"in float32 only: {network.why}")
    samples = division.validation.x
    forms = [
        (each, Made(kernel, file, each.network, each.module))
        for each in candidates
        for kernel, file in target.files(each, samples)
    ]
    say(f"compiling and measuring {len(forms)} forms")
    measured = target.measure([one for _, one in forms], samples)
    points = tuple(
        Point(
            each.width,
            each.precision,
            one.kernel,
            each.accuracy,
            each.lost,
            needs.size,
            one.file.memory + needs.stack,
            one.file,
            needs.latency,
            needs.instructions,
        )
        for (each, one), needs in zip(forms, measured, strict=True)
    )
    return SearchResult(points, tuple(each for each, _ in forms), share)


def _widths(
    module: nn.Module, division: Division, retrain: Retrain, say: Say, widths: Sequence[float]
) -> Iterator[tuple[float, nn.Module]]:
    """Yield (part of the channels, a module of that width), each narrowed from the one before and retrained."""
    full_counts = {each.module: each.channels for each in prunable(graph_of(module, division.ranges.x))}
    before = dict(full_counts)
    for width in sorted(widths, reverse=True):
        channel_counts = {name: max(round(width * channels), 1) for name, channels in full_counts.items()}
        if channel_counts == before and width < 1:
            continue  # nothing can be narrowed, or not by so little
        if channel_counts != before:
            graph = graph_of(module, division.ranges.x)
            say(f"retraining at width {width:g}: {', '.join(map(str, channel_counts.values()))} channels")
            module = retrain(narrowed(module, graph, channel_counts, division.ranges.x[:BATCH])).eval()
        before = channel_counts
        yield width, module


def _precisions(width: float, module: nn.Module, division: Division) -> Iterator[Candidate]:
    network = network_of(module, division.ranges.x)
    yield Candidate(width, network, None, module)
    if isinstance(network, LayerProgram):
        return
    value_ranges = ranges(network, division.ranges.x)
    for precision in PRECISIONS:
        yield Candidate(width, network, integers(network, value_ranges, precision), module)
