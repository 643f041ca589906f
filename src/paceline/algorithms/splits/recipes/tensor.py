"""tensor: layers in pairs, the first split by what it makes and the second by what it takes.

    x --columns--> h_w --rows--> summands --sum--> y

Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism", 2019; also
called tensor parallelism or intra-layer model parallelism. One sum forward and one backward for every two layers; what
lies between them, an activation or dropout, never leaves its worker. Attention is split by heads, embeddings by words,
and convolutions in pairs by the channels that they make and take. Recurrent layers stay whole: each of their time
steps would have to wait for a sum. Not to be confused with pipelines, which deal out whole layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.catalogue import SPLITS
from paceline.algorithms.splits.nodes import SplitNode
from paceline.algorithms.splits.recipes import is_cut_last


@dataclass(frozen=True)
class Tensor:
    name = "tensor"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        way = self._way(node, placements)
        return way if way and not SPLITS[way].refusal(node, workers) else ""

    def _way(self, node: SplitNode, placements: Sequence[Placement]) -> str:
        match node.kind:
            case "linear":
                return "rows" if is_cut_last(node, placements) else "columns"
            case "convolution":
                return "rows" if [cut.dim for cut in placements[0].cuts] == [1] else "channels"
        return {"attention": "heads", "embedding": "vocabulary"}.get(node.kind, "")

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes
