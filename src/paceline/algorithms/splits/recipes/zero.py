"""zero: replicas whose optimizer state, gradients and parameters lie in shares with the workers.

    stage    in shares with the workers                    numbers sent for an update, of a model of N
    -----    ------------------------------------------    -------------------------------------------
    1        optimizer state                               2 N (P-1)/P, as by all-reduce
    2        optimizer state, gradients                    2 N (P-1)/P
    3        optimizer state, gradients, parameters        3 N (P-1)/P

Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020; PyTorch's FSDP is
its third stage. Every worker computes a chunk of its own. A gradient is scattered, summed, to the worker with the
share, whose optimizer steps it; and parameters are gathered: for an update, or in stage 3 for every layer, forward
and again back, and dropped after it. Not to be confused with splits inside layers, where workers compute a layer
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.nodes import SplitNode


@dataclass(frozen=True)
class Zero:
    name = "zero"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        return "replica"

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes
