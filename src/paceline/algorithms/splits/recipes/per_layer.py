"""per_layer: the user's own table {layer or pattern: way}.

    per_layer:ways=encoder.*.linear1:columns+encoder.*.linear2:rows+head:columns

The first pattern that a layer's name fits decides. One with a wildcard passes over layers that cannot be split so; a
name in full is refused for them. Layers that are not named stay whole, and operations without parameters follow what
they take. This is the general form, of which all other recipes are cases; PyTorch's
`parallelize_module` takes such a table, too, and its movements have to be written down by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from paceline.algorithms.splits import Placement
from paceline.algorithms.splits.catalogue import SPLITS, WAYS
from paceline.algorithms.splits.nodes import SplitNode
from paceline.errors import PlanError, suggest

EVERY = "*"  # in a table with others: whatever can be split in its way


@dataclass(frozen=True)
class PerLayer:
    """A table of patterns and ways, in order."""

    table: tuple[tuple[str, str], ...]

    name = "per_layer"

    @staticmethod
    def parse(text: str) -> PerLayer:
        """Read `pattern:way+pattern:way`."""
        rows = []
        for word in filter(None, text.split("+")):
            pattern, colon, way = word.rpartition(":")
            if not colon or not pattern:
                raise PlanError(f"plan 'per_layer': {word!r} is not layer:way, as in ways=fc1:columns+fc2:rows")
            if way not in WAYS:
                raise PlanError(f"plan 'per_layer': there is no way {way!r} to split {pattern}; {suggest(way, WAYS)}")
            rows.append((pattern, way))
        return PerLayer(tuple(rows))

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        if not node.layer:
            return ""
        for pattern, way in self.table:
            if fnmatchcase(node.layer, pattern) and (pattern == node.layer or not SPLITS[way].refusal(node, workers)):
                return way
        return ""

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes

    def check(self, nodes: Sequence[SplitNode]) -> None:
        """Raise `PlanError` if a pattern fits none of the model's layers, or none that can be split in its way."""
        layers = {node.layer: node for node in nodes if node.layer}
        for pattern, way in self.table:
            fits = [node for layer, node in layers.items() if fnmatchcase(layer, pattern)]
            if not fits:
                suggestion = suggest(pattern, list(layers)) if layers else "its code calls no module, so it stays whole"
                raise PlanError(f"plan 'per_layer': the model has no layer {pattern!r}; {suggestion}")
            reasons = [SPLITS[way].refusal(node, 1) for node in fits]
            if all(reasons) and (pattern != EVERY or len(self.table) == 1):
                raise PlanError(f"{fits[0].layer} cannot be split by {way}: {reasons[0]}")
