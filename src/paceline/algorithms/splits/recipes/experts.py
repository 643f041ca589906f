"""experts: experts divided among workers, everything else by samples.

Switch transformers and GShard train so: the layers that every token needs are with every worker, which computes them
for its samples; experts have most of the weights, and are with one worker each. A model without experts is split by
samples alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.catalogue import SPLITS
from paceline.algorithms.splits.nodes import SplitNode


@dataclass(frozen=True)
class Experts:
    name = "experts"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        way = "experts" if node.kind == "experts" else "samples" if node.held else ""
        return way if way and not SPLITS[way].refusal(node, workers) else ""

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes
