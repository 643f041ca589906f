"""channels: each worker computes some of the channels that a convolution makes.

    y_c = x * W_c + b_c      the filters W are divided among the workers

Every worker needs all channels of x. Batch normalisation, activations and pooling that follow keep to the worker's own
channels. A convolution after it by `rows` uses these where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.splits import COPIED, even, split
from paceline.algorithms.splits.columns import few
from paceline.algorithms.splits.nodes import Layout, SplitNode


@dataclass(frozen=True)
class Channels:
    name = "channels"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind != "convolution":
            return "only convolutions without groups have channels"
        return few(node.shape_of("weight")[0], "channels", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        bounds = even(node.shape_of("weight")[0], workers)
        return Layout((COPIED,), split(1, bounds), {"weight": split(0, bounds), "bias": split(0, bounds)})
