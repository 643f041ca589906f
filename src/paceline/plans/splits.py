"""The recipes of plans that split layers: one row per published way."""

from __future__ import annotations

from paceline.core.collectives.ring import Ring
from paceline.core.splits.recipes.one_weird_trick import OneWeirdTrick
from paceline.core.splits.recipes.per_layer import PerLayer
from paceline.core.splits.recipes.tensor import Tensor
from paceline.plans.methods.split_layers import SplitLayers
from paceline.plans.recipe import TEAM, Kind, Recipe

REPLICAS = {**TEAM, "data": Kind(1)}

SPLIT: dict[str, Recipe] = {
    "tensor": Recipe(
        "layers split in pairs: by what the first makes and the second takes",
        lambda data: SplitLayers(Tensor(), Ring(), data),
        REPLICAS,
    ),
    "per_layer": Recipe(
        "each layer split in the way that your table says",
        lambda ways, data: SplitLayers(PerLayer.parse(ways), Ring(), data),
        {**REPLICAS, "ways": Kind("")},
    ),
    "one_weird_trick": Recipe(
        "convolutions split by samples, dense layers by their outputs",
        lambda data: SplitLayers(OneWeirdTrick(), Ring(), data),
        REPLICAS,
    ),
}
