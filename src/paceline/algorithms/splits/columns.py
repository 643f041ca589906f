"""columns: each worker computes some of a layer's outputs, by their columns of the (transposed) weight matrix.

    y = x W^T + b      W = [W_0; W_1; ...]      worker w computes y_w = x W_w^T + b_w

Shoeybi et al., "Megatron-LM", 2019, call it column parallel, and it is the first half of their pairs of layers; the
distribution by neurons of a fully connected net is the same. Every worker needs all of x, and adds a part to its
gradient. An embedding is split by the columns of its table. Not to be confused with `rows`, which splits what is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.splits import COPIED, WHOLE, even, split
from paceline.algorithms.splits.nodes import Layout, SplitNode


@dataclass(frozen=True)
class Columns:
    name = "columns"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in ("linear", "embedding"):
            return "only linear layers and embeddings have columns"
        return few(outputs(node), "outputs", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        bounds = even(outputs(node), workers)
        assert node.shape is not None
        gives = split(len(node.shape) - 1, bounds)
        if node.kind == "embedding":
            return Layout((WHOLE,), gives, {"weight": split(1, bounds)})
        return Layout((COPIED,), gives, {"weight": split(0, bounds), "bias": split(0, bounds)})


def outputs(node: SplitNode) -> int:
    return node.shape_of("weight")[1 if node.kind == "embedding" else 0]


def few(count: int, what: str, workers: int) -> str:
    """Return why so few cannot be divided among the workers; an empty string if they can."""
    return "" if count >= workers else f"it has {count} {what}, too few for {workers} workers"
