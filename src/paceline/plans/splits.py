"""The recipes of plans that split layers, or a model into operators: one row per published way."""

from __future__ import annotations

from functools import partial
from math import isqrt

from paceline.algorithms.collectives.ring import Ring
from paceline.algorithms.splits.recipes import SplitRecipe
from paceline.algorithms.splits.recipes.cannon import Cannon
from paceline.algorithms.splits.recipes.experts import Experts
from paceline.algorithms.splits.recipes.one_weird_trick import OneWeirdTrick
from paceline.algorithms.splits.recipes.per_layer import PerLayer
from paceline.algorithms.splits.recipes.redundant import Redundant
from paceline.algorithms.splits.recipes.tensor import Tensor
from paceline.algorithms.splits.recipes.zero import Zero
from paceline.errors import PlanError
from paceline.plans.methods.dataflow import Dataflow
from paceline.plans.methods.split_layers import SplitLayers
from paceline.plans.recipe import TEAM, Kind, Recipe

REPLICAS = {**TEAM, "data": Kind(1), "memory": Kind(0, least=0)}


def _split(recipe: SplitRecipe, data: int, memory: int, stage: int = 0) -> SplitLayers:
    return SplitLayers(recipe, Ring(), data, stage, memory)


def _cannon(workers: int, data: int, memory: int) -> SplitLayers:
    """Split linear layers on square grids, of which each replica has one."""
    grid = workers // data
    if isqrt(grid) ** 2 != grid or workers % data:
        fits = ", ".join(str(data * side * side) for side in (2, 3, 4))
        grids = "a square grid" if data == 1 else f"{data} square grids of one size"
        raise PlanError(f"plan 'cannon': {workers} workers do not form {grids}; give workers={fits} or so")
    return _split(Cannon(), data, memory)


def _ampnet(micro_batches: int, active: int, every: int, on: str) -> Dataflow:
    words = on.split("+") if on else []
    if not all(word.isdigit() for word in words):
        raise PlanError(f"plan 'ampnet': on={on!r} is not a worker for each operator, as in on=0+1+0")
    return Dataflow(micro_batches, active, every, tuple(map(int, words)))


SPLIT: dict[str, Recipe] = {
    "tensor": Recipe(
        "layers split in pairs: by what the first makes and the second takes",
        partial(_split, Tensor()),
        REPLICAS,
    ),
    "redundant": Recipe(
        "borders of images and small layers computed again, instead of sent",
        lambda small, data, memory: _split(Redundant(small), data, memory),
        {**REPLICAS, "small": Kind(16384, least=0)},
    ),
    "per_layer": Recipe(
        "each layer split in the way that your table says",
        lambda ways, data, memory: _split(PerLayer.parse(ways), data, memory),
        {**REPLICAS, "ways": Kind("")},
    ),
    "zero": Recipe(
        "replicas whose optimizer state, gradients and parameters lie in shares",
        partial(_split, Zero()),
        {**REPLICAS, "stage": Kind(3, least=1, most=3)},
    ),
    "experts": Recipe(
        "experts of a mixture divided among workers, everything else by samples",
        partial(_split, Experts()),
        REPLICAS,
    ),
    "cannon": Recipe(
        "linear layers as products of blocks on a square grid of workers",
        _cannon,
        {**REPLICAS, "workers": Kind(4)},
    ),
    "one_weird_trick": Recipe(
        "convolutions split by samples, dense layers by their outputs",
        partial(_split, OneWeirdTrick()),
        REPLICAS,
    ),
    "ampnet": Recipe(
        "operators that compute whenever a message is there, for many chunks at a time",
        _ampnet,
        {**TEAM, "micro_batches": Kind(1), "active": Kind(4), "every": Kind(1), "on": Kind("")},
    ),
}
