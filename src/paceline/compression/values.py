"""The values of a network's steps in float32, and the ranges that they take on training data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paceline.compression.network import INPUT, Affine, Function, MaxPooling, Network, Step, Sum, Window
from paceline.compression.reading import function_of

BATCH = 512


class Range(NamedTuple):
    """The least and the largest number, nought included: padding is nought."""

    low: float
    high: float

    def joined(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


def sums(step: Step, tensors: dict[str, Tensor]) -> Tensor:
    """What a step computes before its activation."""
    match step:
        case Affine(source=source, geometry=g, weight=weight, bias=bias):
            return functional.conv2d(tensors[source], weight, bias, g.stride, g.padding, g.dilation)
        case Window(source=source, geometry=g, weight=weight, bias=bias):
            channels = tensors[source].shape[1]
            each = weight.expand(channels, *g.kernel)[:, None]
            return functional.conv2d(tensors[source], each, bias, g.stride, g.padding, g.dilation, channels)
        case MaxPooling(source=source, geometry=g):
            return functional.max_pool2d(tensors[source], g.kernel, g.stride, g.padding, g.dilation)
        case Sum(left=left, right=right):
            return tensors[left] + tensors[right]
        case Function(source=source):
            return tensors[source]


def values(network: Network, x: Tensor) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Yield (step, before its activation, after it) for a batch of samples."""
    tensors = {INPUT: x.float().reshape(len(x), *network.inputs)}
    for step in network.steps:
        before = sums(step, tensors)
        function = "" if isinstance(step, MaxPooling) else step.function
        tensors[step.name] = after = function_of(function)(before) if function else before
        yield step, before, after


@torch.no_grad()
def compute(network: Network, x: Tensor) -> Tensor:
    """Return the network's results for a batch, as the model would give them."""
    result = x
    for _, _, after in values(network, x):
        result = after
    return result.reshape(len(x), *network.result)


@torch.no_grad()
def ranges(network: Network, x: Tensor) -> dict[str, tuple[Range, Range]]:
    """Return the range of each step before and after its activation, and that of the input."""
    step_ranges: dict[str, tuple[Range, Range]] = {}

    def see(name: str, before: Tensor, after: Tensor) -> None:
        new = _range(before), _range(after)
        old = step_ranges.get(name)
        step_ranges[name] = new if old is None else (old[0].joined(new[0]), old[1].joined(new[1]))

    for start in range(0, len(x), BATCH):
        part = x[start : start + BATCH]
        see(INPUT, part, part)
        for step, before, after in values(network, part):
            see(step.name, before, after)
    return step_ranges


def _range(x: Tensor) -> Range:
    return Range(min(float(x.min()), 0.0), max(float(x.max()), 0.0))
