"""one_weird_trick: convolutions by samples, and the dense layers by their outputs.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014. Convolutions have most of the
arithmetic and few weights, so their weights' gradients are cheap to add up; dense layers have most of the weights, and
only their activations travel:

    convolutions: worker w has samples w     gather     dense layers: worker w has columns w, of all samples

This is the paper's scheme (a), in which the dense layers see the whole batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.catalogue import SPLITS
from paceline.algorithms.splits.nodes import SplitNode

BY = {"convolution": "samples", "convolution_groups": "samples", "linear": "columns"}


@dataclass(frozen=True)
class OneWeirdTrick:
    name = "one_weird_trick"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        way = BY.get(node.kind, "")
        return way if way and not SPLITS[way].refusal(node, workers) else ""

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes
