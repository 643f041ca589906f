"""heads: each worker computes some of the heads of an attention.

    y = sum over h of softmax(q_h k_h^T / sqrt(d)) v_h O_h^T

Shoeybi et al., "Megatron-LM", 2019. Queries, keys and values are projected as by `columns`, a head at a time, and the
output projection is as by `rows`: one sum forward and one backward. The projections of all three lie in one matrix,
which every worker stores by rows of its own heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.splits import COPIED, PARTIAL, Cut, Placement, even, split
from paceline.algorithms.splits.columns import few
from paceline.algorithms.splits.nodes import Layout, SplitNode


@dataclass(frozen=True)
class Heads:
    name = "heads"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind != "attention":
            return "only nn.MultiheadAttention with one size for queries, keys and values has heads to split"
        (heads,) = node.numbers("heads")
        return few(heads, "heads", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        (heads,) = node.numbers("heads")
        width = node.shape_of("out_proj.weight")[1]
        bounds = even(width, workers, width // heads)
        three = Placement("split", (Cut(1, bounds),))  # in_proj as (3, width, width): queries, keys, values
        return Layout(
            (COPIED,) * len(node.takes),
            PARTIAL,
            {"in_proj_weight": three, "in_proj_bias": three, "out_proj.weight": split(1, bounds)},
        )
