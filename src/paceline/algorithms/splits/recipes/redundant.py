"""redundant: workers compute some of their neighbours' neurons again, and communicate less.

    tensor       x --columns--> h_w --rows--> summands --sum--> y       a sum for every two layers, forward and back
    redundant    rows of images, with borders computed again            no message from layer to layer
                 small dense layers, by all workers                     no message
                 large dense layers, as by tensor

After Muller and Gunzinger, "Neural net simulation on parallel computers", 1994, in which a processor computes up to
twice its own neurons. Convolutions, pooling and activations are computed by strips (`algorithms.splits.strips`);
weights of convolutions are then with every worker, and their gradients are summed once in an update. For links on which
a message costs more than what it spares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.nodes import SplitNode
from paceline.algorithms.splits.recipes.tensor import Tensor
from paceline.algorithms.splits.strips import Strips, with_windows


@dataclass(frozen=True)
class Redundant:
    #: Dense layers of at most so many weights are computed by all workers.
    small: int = 16384

    name = "redundant"

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return with_windows(nodes, workers)

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        if "windows" in node.facts:
            return Strips.name
        if node.kind == "linear" and prod(node.shape_of("weight")) <= self.small:
            return "whole"
        return "" if node.kind.startswith("convolution") else Tensor().choose(node, placements, workers)
