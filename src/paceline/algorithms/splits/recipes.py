"""Recipes: which way each layer is split. One class per published way of splitting whole models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Protocol

from paceline.algorithms.splits import Held, Placement, Shape, SplitNode
from paceline.algorithms.splits.cannon import Cannon as Way
from paceline.algorithms.splits.catalogue import SPLITS, WAYS
from paceline.algorithms.splits.derivation import PARAMETER, Program, derive
from paceline.algorithms.splits.ways import Strips, with_windows
from paceline.errors import PlanError, suggest


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


@dataclass(frozen=True)
class Tensor:
    """tensor: layers in pairs, the first split by what it makes and the second by what it takes.

        x --columns--> h_w --rows--> summands --sum--> y

    Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism", 2019; also
    called tensor parallelism or intra-layer model parallelism. One sum forward and one backward for every two layers;
    what lies between them, an activation or dropout, never leaves its worker. Attention is split by heads, embeddings
    by words, and convolutions in pairs by the channels that they make and take. Recurrent layers stay whole: each of
    their time steps would have to wait for a sum. Not to be confused with pipelines, which deal out whole layers.
    """

    name = "tensor"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        way = self._way(node, placements)
        return way if way and not SPLITS[way].refusal(node, workers) else ""

    def _way(self, node: SplitNode, placements: Sequence[Placement]) -> str:
        match node.kind:
            case "linear":
                return "rows" if is_cut_last(node, placements) else "columns"
            case "convolution":
                return "rows" if [cut.dim for cut in placements[0].cuts] == [1] else "channels"
        return {"attention": "heads", "embedding": "vocabulary"}.get(node.kind, "")

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes


@dataclass(frozen=True)
class Redundant:
    #: Dense layers of at most so many weights are computed by all workers.
    """redundant: workers compute some of their neighbours' neurons again, and communicate less.

        tensor       x --columns--> h_w --rows--> summands --sum--> y       a sum for every two layers, forward and back
        redundant    rows of images, with borders computed again            no message from layer to layer
                     small dense layers, by all workers                     no message
                     large dense layers, as by tensor

    After Muller and Gunzinger, "Neural net simulation on parallel computers", 1994, in which a processor computes up to
    twice its own neurons. Convolutions, pooling and activations are computed by strips (`algorithms.splits.ways`);
    weights of convolutions are then with every worker, and their gradients are summed once in an update. For links on
    which a message costs more than what it spares.
    """

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


@dataclass(frozen=True)
class Experts:
    """experts: experts divided among workers, everything else by samples.

    Switch transformers and GShard train so: the layers that every token needs are with every worker, which computes
    them for its samples; experts have most of the weights, and are with one worker each. A model without experts is
    split by samples alone.
    """

    name = "experts"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        way = "experts" if node.kind == "experts" else "samples" if node.held else ""
        return way if way and not SPLITS[way].refusal(node, workers) else ""

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes


@dataclass(frozen=True)
class Zero:
    """zero: replicas whose optimizer state, gradients and parameters lie in shares with the workers.

        stage    in shares with the workers                    numbers sent for an update, of a model of N
        -----    ------------------------------------------    -------------------------------------------
        1        optimizer state                               2 N (P-1)/P, as by all-reduce
        2        optimizer state, gradients                    2 N (P-1)/P
        3        optimizer state, gradients, parameters        3 N (P-1)/P

    Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020; PyTorch's FSDP
    is its third stage. Every worker computes a chunk of its own. A gradient is scattered, summed, to the worker with
    the share, whose optimizer steps it; and parameters are gathered: for an update, or in stage 3 for every layer,
    forward and again back, and dropped after it. Not to be confused with splits inside layers, where workers compute a
    layer together.
    """

    name = "zero"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        return "replica"

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes


@dataclass(frozen=True)
class Cannon:
    """cannon: every linear layer as a product of blocks on a square grid of workers (`algorithms.splits.cannon`).

    What lies between two such layers stays in blocks. Layers of other kinds are computed whole.
    """

    name = "cannon"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        return "cannon" if node.kind == "linear" and not Way().refusal(node, workers) else ""

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes


BY = {"convolution": "samples", "convolution_groups": "samples", "linear": "columns"}


@dataclass(frozen=True)
class OneWeirdTrick:
    """one_weird_trick: convolutions by samples, and the dense layers by their outputs.

    Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014. Convolutions have most of the
    arithmetic and few weights, so their weights' gradients are cheap to add up; dense layers have most of the weights,
    and only their activations travel:

        convolutions: worker w has samples w     gather     dense layers: worker w has columns w, of all samples

    This is the paper's scheme (a), in which the dense layers see the whole batch at once.
    """

    name = "one_weird_trick"

    def choose(self, node: SplitNode, placements: Sequence[Placement], workers: int) -> str:
        way = BY.get(node.kind, "")
        return way if way and not SPLITS[way].refusal(node, workers) else ""

    def check(self, nodes: Sequence[SplitNode]) -> None:
        return None

    def prepare(self, nodes: Sequence[SplitNode], workers: int) -> Sequence[SplitNode]:
        return nodes


EVERY = "*"  # in a table with others: whatever can be split in its way


@dataclass(frozen=True)
class PerLayer:
    """per_layer: the user's own table {layer or pattern: way}.

        per_layer:ways=encoder.*.linear1:columns+encoder.*.linear2:rows+head:columns

    The first pattern that a layer's name fits decides. One with a wildcard passes over layers that cannot be split so;
    a name in full is refused for them. Layers that are not named stay whole, and operations without parameters follow
    what they take. This is the general form, of which all other recipes are cases; PyTorch's `parallelize_module` takes
    such a table, too, and its movements have to be written down by hand.

    A table of patterns and ways, in order.
    """

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


# Small nets as nodes, to draw and prove a recipe by where there is no model: of convolutions, or with experts.

SAMPLES = 64


def example_program(recipe: SplitRecipe, workers: int, stage: int = 0) -> Program:
    """Return the program of a batch of 64 images of 8 x 8 points: two convolutions, two dense layers.

    Under `experts` it is that of 64 sequences of 16 tokens: a dense layer, experts and their router, a dense layer.
    """
    mixture = isinstance(recipe, Experts)
    shape: Shape = (SAMPLES, 16, 32) if mixture else (SAMPLES, 3, 8, 8)
    nodes = recipe.prepare(_mixture(2 * workers) if mixture else _nodes(8 * workers), workers)
    needs = {node.name for node in nodes} | {PARAMETER + parameter.name for node in nodes for parameter in node.held}
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
