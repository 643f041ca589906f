"""whole: every worker computes all of the layer, and gets the same."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.splits import WHOLE
from paceline.algorithms.splits.nodes import Layout, SplitNode


@dataclass(frozen=True)
class Whole:
    name = "whole"

    def refusal(self, node: SplitNode, workers: int) -> str:
        return ""

    def layout(self, node: SplitNode, workers: int) -> Layout:
        return Layout((WHOLE,) * len(node.takes), WHOLE, {})
