"""Recipes: which way each layer is split. One file per published way of splitting whole models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.nodes import SplitNode


class SplitRecipe(Protocol):
    """Chooses the way of each layer."""

    @property
    def name(self) -> str:
        """The name that messages use."""

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        """Return the way of a layer whose values were made in these placements; an empty word lets it follow them."""

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        """Return a model's operations with what the recipe has to know of the model as a whole.

        Raise `PlanError` if the recipe does not fit the model.
        """

    def check(self, nodes: Sequence[SplitNode]) -> None:
        """Raise `PlanError` if the recipe names what the model, with these operations, does not have."""


def is_cut_last(node: SplitNode, placements: Sequence[Placement]) -> bool:
    """Whether what an operation takes was made in parts, by its last dimension alone."""
    shape = node.shapes[0] if node.shapes else None
    return shape is not None and [cut.dim for cut in placements[0].cuts] == [len(shape) - 1]
