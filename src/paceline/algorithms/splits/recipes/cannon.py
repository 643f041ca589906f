"""cannon: every linear layer as a product of blocks on a square grid of workers (`algorithms.splits.cannon`).

What lies between two such layers stays in blocks. Layers of other kinds are computed whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.cannon import Cannon as Way
from paceline.algorithms.splits.nodes import SplitNode


@dataclass(frozen=True)
class Cannon:
    name = "cannon"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        return "cannon" if node.kind == "linear" and not Way().refusal(node, workers) else ""

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes
