"""replica: each worker computes all of the layer, for a chunk of its own.

    g = sum over w of g_w        the gradient of the batch is the sum of the workers' summands

It is data parallelism: no value travels, and every parameter is copied while it is used. ZeRO and FSDP store a share of
it with each worker. Only `zero` uses it: where one layer is computed so, all are.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.splits import COPIED, WHOLE
from paceline.algorithms.splits.nodes import Layout, SplitNode


@dataclass(frozen=True)
class Replica:
    name = "replica"

    def refusal(self, node: SplitNode, workers: int) -> str:
        return ""

    def layout(self, node: SplitNode, workers: int) -> Layout:
        return Layout((WHOLE,) * len(node.takes), WHOLE, {held.role: COPIED for held in node.held if held.trained})
