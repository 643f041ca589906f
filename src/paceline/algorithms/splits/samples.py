"""samples: each worker computes all of the layer for some of the batch's samples.

It is data parallelism inside one batch. Every worker holds all of the layer's parameters, and their gradients are added
up. Dropout draws what it would draw for the whole batch. Not to be confused with replicas that compute a chunk each: a
batch stays one chunk, and what looks at several samples, such as batch normalisation, is split by channels instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.splits import COPIED, even, split
from paceline.algorithms.splits.nodes import Layout, SplitNode

#: Kinds that compute every entry of dimension 0 on its own.
APART = ("linear", "convolution", "convolution_groups", "embedding", "layer_norm", "per_sample")


@dataclass(frozen=True)
class Samples:
    name = "samples"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in APART:
            return "it does not compute every sample on its own"
        shape = node.shapes[0]
        if shape is None or node.shape is None or not node.shape or shape[:1] != node.shape[:1]:
            return "its first dimension is not that of the samples"
        return ""

    def layout(self, node: SplitNode, workers: int) -> Layout:
        (shape,) = node.shapes
        assert shape is not None
        placed = split(0, even(shape[0], workers))
        return Layout((placed,), placed, {held.role: COPIED for held in node.held})
