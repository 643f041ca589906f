"""A small convolutional net as nodes, to draw and prove a recipe by where there is no model."""

from __future__ import annotations

from paceline.core.splits.derivation import PARAMETER, Program, derive
from paceline.core.splits.nodes import Held, Node, Shape
from paceline.core.splits.recipes import SplitRecipe

SAMPLES = 64


def example_program(recipe: SplitRecipe, workers: int, stage: int = 0) -> Program:
    """Return the program of a batch of 64 images of 8 x 8 points: two convolutions, two dense layers."""
    nodes = recipe.prepare(_nodes(width=8 * workers), workers)
    needs = {node.name for node in nodes} | {PARAMETER + held.name for node in nodes for held in node.held}
    return derive(
        nodes, {"images": (SAMPLES, 3, 8, 8)}, ["dense2"], needs, workers, recipe.choose, stage > 0, stage == 3
    )


def _nodes(width: int) -> list[Node]:
    maps, after = (SAMPLES, width, 8, 8), (SAMPLES, width, 4, 4)
    return [
        _layer("conv1", "convolution", "images", (SAMPLES, 3, 8, 8), maps, (width, 3, 3, 3)),
        Node("relu1", "elementwise", ("conv1",), (maps,), maps),
        _layer("conv2", "convolution", "relu1", maps, maps, (width, width, 3, 3)),
        Node("relu2", "elementwise", ("conv2",), (maps,), maps),
        Node("pool", "channelwise", ("relu2",), (maps,), after, facts={"rows": (2, 2, 0, 1)}),
        Node("flatten", "reshape", ("pool",), (after,), (SAMPLES, 16 * width)),
        _layer("dense1", "linear", "flatten", (SAMPLES, 16 * width), (SAMPLES, 128), (128, 16 * width)),
        Node("relu3", "elementwise", ("dense1",), ((SAMPLES, 128),), (SAMPLES, 128)),
        _layer("dense2", "linear", "relu3", (SAMPLES, 128), (SAMPLES, 10 * width), (10 * width, 128)),
    ]


def _layer(name: str, kind: str, takes: str, before: Shape, after: Shape, weight: Shape) -> Node:
    held = Held("weight", f"{name}.weight", weight), Held("bias", f"{name}.bias", weight[:1])
    facts = {"rows": (3, 1, 1, 1)} if kind == "convolution" else {}
    return Node(name, kind, (takes,), (before,), after, held, name, facts)
