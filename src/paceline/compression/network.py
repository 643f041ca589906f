"""A trained network for inference, as data: what its layers compute once, without what only training needs.

Every layer is one of five steps on images of shape (channels, height, width), of which a row of numbers is one of a
single pixel. Dropout is gone, batch-norm is part of the layer before it, and an activation belongs to the sum that it
follows.

    Affine       sums of products over a window of all channels: dense layers and convolutions
    Window       sums of products over a window of each channel: average and trainable pooling, depthwise convolutions
    MaxPooling   the maximum over a window of each channel
    Sum          two values, number by number
    Function     an activation that follows none of the above
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from torch import Tensor

from paceline.errors import JobError

Image = tuple[int, int, int]
Pair = tuple[int, int]
INPUT = "input"


class CannotEmit(JobError):
    """A layer that has no form in C."""


@dataclass(frozen=True)
class Geometry:
    """How a window moves over an image."""

    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)


@dataclass(frozen=True)
class Unary:
    """A step that reads one value."""

    name: str
    source: str
    shape: Image

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True)
class MaxPooling(Unary):
    """The maximum over a window of each channel."""

    geometry: Geometry


@dataclass(frozen=True)
class Weighted(Unary):
    """Sums of products over a window; `weight` is stored as the class says."""

    geometry: Geometry
    weight: Tensor
    bias: Tensor
    function: str = ""


class Affine(Weighted):
    """Sums of products over all channels; `weight` is [outputs, inputs, rows, columns]."""


class Window(Weighted):
    """Sums of products within each channel; `weight` is [channels or 1, rows, columns]."""


@dataclass(frozen=True)
class Function(Unary):
    """An activation at every place."""

    function: str


@dataclass(frozen=True)
class Sum:
    """Two values, number by number."""

    name: str
    left: str
    right: str
    shape: Image
    function: str = ""

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.left, self.right)


Step = Affine | Window | MaxPooling | Sum | Function


@dataclass(frozen=True)
class Network:
    """The steps of a network in order; the last one's value is the result."""

    inputs: Image
    steps: tuple[Step, ...]
    #: The shape of a sample as the model takes it, whose numbers lie in the order of `inputs`.
    sample: tuple[int, ...]
    #: The shape of one result as the model gives it.
    result: tuple[int, ...]
    #: The "log_softmax" or "softmax" that the model ends in, which is left out: it changes no order.
    end: str = ""

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def numbers_in(self) -> int:
        return prod(self.inputs)

    @property
    def numbers_out(self) -> int:
        return prod(self.last.shape)

    def shape(self, name: str) -> Image:
        """The shape of a step's value, or of the input."""
        return self.inputs if name == INPUT else next(step.shape for step in self.steps if step.name == name)

    def products(self) -> int:
        """The multiplications of one sample."""
        return sum(_products(step) for step in self.steps)

    def parameters(self) -> int:
        """The weights and biases."""
        return sum(step.weight.numel() + step.bias.numel() for step in self.steps if isinstance(step, Affine | Window))


def _products(step: Step) -> int:
    if isinstance(step, Affine):
        return step.shape[1] * step.shape[2] * step.weight.numel()
    return prod(step.shape) * prod(step.geometry.kernel) if isinstance(step, Window) else 0


def with_functions(steps: list[Step], result: str) -> Iterator[Step]:
    """Let activations belong to the sums that they follow, where nothing else reads the sums."""
    readers: dict[str, int] = {result: 1}
    for step in steps:
        for source in step.sources:
            readers[source] = readers.get(source, 0) + 1
    followed = {s.source: s for s in steps if isinstance(s, Function) and readers[s.source] == 1}
    fused = set()
    for step in steps:
        after = followed.get(step.name)
        if isinstance(step, Affine | Window | Sum) and not step.function and after is not None:
            fused.add(after.name)
            yield replace(step, name=after.name, function=after.function)
        elif step.name not in fused:
            yield step
