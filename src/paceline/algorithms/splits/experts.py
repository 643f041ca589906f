"""experts: each worker holds some experts of a mixture, and tokens travel to them and back, from all to all.

    worker w: routes its samples --exchange--> its experts, tokens of all workers --exchange--> its samples

Fedus, Zoph and Shazeer, "Switch transformers", 2021; Lepikhin et al., "GShard", 2020. Tokens lie in slots (experts,
groups, capacity, width): a worker fills those of its groups of samples, and computes those of its experts. The two
placements are cuts of different dimensions, so the exchange is derived like any other. A layer becomes three
operations, of which the last has its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from paceline.algorithms.splits import even, split
from paceline.algorithms.splits.columns import few
from paceline.algorithms.splits.nodes import Layout, SplitNode

DISPATCH, COMPUTE, COMBINE = KINDS = ("dispatch_tokens", "compute_experts", "combine_tokens")


@dataclass(frozen=True)
class Experts:
    name = "experts"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in ("experts", *KINDS):
            return "only paceline.training.jobs.modules.Experts has experts"
        experts, groups = _slots(node)[:2]
        return few(experts, "experts", workers) or few(groups, "groups of samples", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        """Return the layout of one of the three operations; `steps` makes them of a layer."""
        experts, groups = _slots(node)[:2]
        of_groups, of_experts = even(groups, workers), even(experts, workers)
        if node.kind == COMPUTE:
            mine = split(0, of_experts)
            return Layout((mine,), mine, {held.role: mine for held in node.held})
        tokens = node.shapes[-1]
        assert tokens is not None
        starts = even(tokens[0], groups)
        samples = split(0, [starts[group] for group in of_groups])
        if node.kind == DISPATCH:
            return Layout((samples, samples), split(1, of_groups), {})
        return Layout((split(1, of_groups), samples), samples, {})


def steps(node: SplitNode, workers: int) -> Iterator[SplitNode]:
    """Yield the operations that a layer of experts is computed by."""
    slots, (_, probabilities) = _slots(node), node.takes
    dispatch, compute = f"{node.name}#dispatch", f"{node.name}#compute"
    yield replace(node, name=dispatch, kind=DISPATCH, shape=slots, held=())
    yield replace(node, name=compute, kind=COMPUTE, takes=(dispatch,), shapes=(slots,), shape=slots)
    shapes = (slots, node.shapes[1])
    yield replace(node, kind=COMBINE, takes=(compute, probabilities), shapes=shapes, held=())


def _slots(node: SplitNode) -> tuple[int, ...]:
    """Return the shape of the slots: experts, groups, capacity, width."""
    return node.numbers("slots")
