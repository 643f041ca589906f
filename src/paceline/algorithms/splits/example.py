"""Small nets as nodes, to draw and prove a recipe by where there is no model: of convolutions, or with experts."""

from __future__ import annotations

from paceline.algorithms.splits.derivation import PARAMETER, Program, derive
from paceline.algorithms.splits.nodes import Held, Shape, SplitNode
from paceline.algorithms.splits.recipes import SplitRecipe
from paceline.algorithms.splits.recipes.experts import Experts

SAMPLES = 64


def example_program(recipe: SplitRecipe, workers: int, stage: int = 0) -> Program:
    """Return the program of a batch of 64 images of 8 x 8 points: two convolutions, two dense layers.

    Under `experts` it is that of 64 sequences of 16 tokens: a dense layer, experts and their router, a dense layer.
    """
    mixture = isinstance(recipe, Experts)
    shape: Shape = (SAMPLES, 16, 32) if mixture else (SAMPLES, 3, 8, 8)
    nodes = recipe.prepare(_mixture(2 * workers) if mixture else _nodes(8 * workers), workers)
    needs = {node.name for node in nodes} | {PARAMETER + held.name for node in nodes for held in node.held}
    return derive(
        nodes, {nodes[0].takes[0]: shape}, [nodes[-1].name], needs, workers, recipe.choose, stage > 0, stage == 3
    )


def _nodes(width: int) -> list[SplitNode]:
    maps, after = (SAMPLES, width, 8, 8), (SAMPLES, width, 4, 4)
    return [
        _layer("conv1", "convolution", "images", (SAMPLES, 3, 8, 8), maps, (width, 3, 3, 3)),
        SplitNode("relu1", "elementwise", ("conv1",), (maps,), maps),
        _layer("conv2", "convolution", "relu1", maps, maps, (width, width, 3, 3)),
        SplitNode("relu2", "elementwise", ("conv2",), (maps,), maps),
        SplitNode("pool", "channelwise", ("relu2",), (maps,), after, facts={"rows": (2, 2, 0, 1)}),
        SplitNode("flatten", "reshape", ("pool",), (after,), (SAMPLES, 16 * width)),
        _layer("dense1", "linear", "flatten", (SAMPLES, 16 * width), (SAMPLES, 128), (128, 16 * width)),
        SplitNode("relu3", "elementwise", ("dense1",), ((SAMPLES, 128),), (SAMPLES, 128)),
        _layer("dense2", "linear", "relu3", (SAMPLES, 128), (SAMPLES, 10 * width), (10 * width, 128)),
    ]


def _mixture(experts: int) -> list[SplitNode]:
    tokens, scores = (SAMPLES, 16, 32), (SAMPLES, 16, experts)
    slots = (experts, 8, -(-SAMPLES * 2 * 5 // (4 * experts)), 32)
    shapes = {"enter": (experts, 32, 128), "enter_bias": (experts, 1, 128)}
    shapes |= {"leave": (experts, 128, 32), "leave_bias": (experts, 1, 32)}
    parameters = tuple(Held(role, f"experts.{role}", shape) for role, shape in shapes.items())
    return [
        _layer("dense1", "linear", "tokens", tokens, tokens, (32, 32)),
        _layer("router", "linear", "dense1", tokens, scores, (experts, 32)),
        SplitNode("softmax", "along", ("router",), (scores,), scores, facts={"along": (2,)}),
        SplitNode(
            "experts",
            "experts",
            ("dense1", "softmax"),
            (tokens, scores),
            tokens,
            parameters,
            "experts",
            {"slots": slots},
        ),
        SplitNode("add", "elementwise", ("dense1", "experts"), (tokens, tokens), tokens),
        _layer("dense2", "linear", "add", tokens, tokens, (32, 32)),
    ]


def _layer(name: str, kind: str, takes: str, before: Shape, after: Shape, weight: Shape) -> SplitNode:
    parameters = Held("weight", f"{name}.weight", weight), Held("bias", f"{name}.bias", weight[:1])
    facts = {"rows": (3, 1, 1, 1)} if kind == "convolution" else {}
    return SplitNode(name, kind, (takes,), (before,), after, parameters, name, facts)
