"""rows: each worker multiplies some of a layer's inputs, by their rows of the (transposed) weight matrix.

    y = sum over w of x_w W_w^T, + b        x = [x_0, x_1, ...]        W = [W_0, W_1, ...]

Shoeybi et al., "Megatron-LM", 2019, call it row parallel: after a layer by `columns`, what that one gave is used where
it lies, and only the sums travel. A convolution is split by the channels that it takes. The bias is added by the first
worker, and every worker holds it: its gradient needs no sum, since the gradient of y is whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.splits import PARTIAL, even, split
from paceline.algorithms.splits.columns import few
from paceline.algorithms.splits.nodes import Layout, SplitNode


@dataclass(frozen=True)
class Rows:
    name = "rows"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in ("linear", "convolution"):
            return "only linear layers and convolutions have rows"
        return few(node.shape_of("weight")[1], "inputs", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        bounds = even(node.shape_of("weight")[1], workers)
        (shape,) = node.shapes
        assert shape is not None
        dim = len(shape) - 1 if node.kind == "linear" else 1
        return Layout((split(dim, bounds),), PARTIAL, {"weight": split(1, bounds)})
