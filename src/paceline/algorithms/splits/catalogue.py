"""The ways to split a layer, by the word that users write."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.splits import COPIED, PARTIAL, WHOLE, Cut, Layout, Placement, Split, SplitNode, even, split
from paceline.algorithms.splits.cannon import Cannon
from paceline.algorithms.splits.ways import Columns, Experts, Strips, few


@dataclass(frozen=True)
class Rows:
    """Each worker multiplies some of a layer's inputs, by their rows of the (transposed) weight matrix.

        y = sum over w of x_w W_w^T, + b        x = [x_0, x_1, ...]        W = [W_0, W_1, ...]

    Shoeybi et al., "Megatron-LM", 2019, call it row parallel: after a layer by `columns`, what that one gave is used
    where it lies, and only the sums travel. A convolution is split by the channels that it takes. The bias is added by
    the first worker, and every worker holds it: its gradient needs no sum, since the gradient of y is whole.
    """

    name = "rows"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in ("linear", "convolution"):
            return "only linear layers and convolutions have rows"
        return few(node.shape_of("weight")[1], "inputs", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        bounds = even(node.shape_of("weight")[1], workers)
        (shape,) = node.shapes
        assert shape is not None
        dim = len(shape) - 1 if node.kind == "linear" else 1
        return Layout((split(dim, bounds),), PARTIAL, {"weight": split(1, bounds)})


@dataclass(frozen=True)
class Channels:
    """Each worker computes some of the channels that a convolution makes.

        y_c = x * W_c + b_c      the filters W are divided among the workers

    Every worker needs all channels of x. Batch normalisation, activations and pooling that follow keep to the worker's
    own channels. A convolution after it by `rows` uses these where they lie.
    """

    name = "channels"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind != "convolution":
            return "only convolutions without groups have channels"
        return few(node.shape_of("weight")[0], "channels", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        bounds = even(node.shape_of("weight")[0], workers)
        return Layout((COPIED,), split(1, bounds), {"weight": split(0, bounds), "bias": split(0, bounds)})


@dataclass(frozen=True)
class Heads:
    """Each worker computes some of the heads of an attention.

        y = sum over h of softmax(q_h k_h^T / sqrt(d)) v_h O_h^T

    Shoeybi et al., "Megatron-LM", 2019. Queries, keys and values are projected as by `columns`, a head at a time, and
    the output projection is as by `rows`: one sum forward and one backward. The projections of all three lie in one
    matrix, which every worker stores by rows of its own heads.
    """

    name = "heads"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind != "attention":
            return "only nn.MultiheadAttention with one size for queries, keys and values has heads to split"
        (heads,) = node.numbers("heads")
        return few(heads, "heads", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        (heads,) = node.numbers("heads")
        width = node.shape_of("out_proj.weight")[1]
        bounds = even(width, workers, width // heads)
        three = Placement("split", (Cut(1, bounds),))  # in_proj as (3, width, width): queries, keys, values
        return Layout(
            (COPIED,) * len(node.takes),
            PARTIAL,
            {"in_proj_weight": three, "in_proj_bias": three, "out_proj.weight": split(1, bounds)},
        )


@dataclass(frozen=True)
class Vocabulary:
    """Each worker holds some of an embedding's rows, or computes the scores of some words.

        e(word) = sum over w of e_w(word)      where e_w is zero for the words that worker w does not hold

    Shoeybi et al., "Megatron-LM", 2019. The linear layer that ends a language model is split in the same way, by
    `columns`; where both share one matrix, its rows lie with the same workers for both.
    """

    name = "vocabulary"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in ("embedding", "linear"):
            return "only embeddings and the linear layer of scores have a vocabulary"
        return few(node.shape_of("weight")[0], "words", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        if node.kind == "linear":
            return Columns().layout(node, workers)
        return Layout((WHOLE,), PARTIAL, {"weight": split(0, even(node.shape_of("weight")[0], workers))})


#: Kinds that compute every entry of dimension 0 on its own.
APART = ("linear", "convolution", "convolution_groups", "embedding", "layer_norm", "per_sample")


@dataclass(frozen=True)
class Samples:
    """Each worker computes all of the layer for some of the batch's samples.

    It is data parallelism inside one batch. Every worker holds all of the layer's parameters, and their gradients
    are summed. Dropout draws what it would draw for the whole batch. Not to be confused with replicas that compute a
    chunk each: a batch stays one chunk, and what looks at several samples, such as batch normalisation, is split by
    channels instead.
    """

    name = "samples"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in APART:
            return "it does not compute every sample on its own"
        shape = node.shapes[0]
        if shape is None or node.shape is None or not node.shape or shape[:1] != node.shape[:1]:
            return "its first dimension is not that of the samples"
        return ""

    def layout(self, node: SplitNode, workers: int) -> Layout:
        (shape,) = node.shapes
        assert shape is not None
        placed = split(0, even(shape[0], workers))
        return Layout((placed,), placed, {parameter.role: COPIED for parameter in node.held})


@dataclass(frozen=True)
class Replica:
    """Each worker computes all of the layer, for a chunk of its own.

        g = sum over w of g_w        the gradient of the batch is the sum of the workers' summands

    It is data parallelism: no value travels, and every parameter is copied while it is used. ZeRO and FSDP store a
    share of it with each worker. Only `zero` uses it: where one layer is computed so, all are.
    """

    name = "replica"

    def refusal(self, node: SplitNode, workers: int) -> str:
        return ""

    def layout(self, node: SplitNode, workers: int) -> Layout:
        return Layout(
            (WHOLE,) * len(node.takes), WHOLE, {parameter.role: COPIED for parameter in node.held if parameter.trained}
        )


@dataclass(frozen=True)
class Whole:
    """Every worker computes all of the layer, and gets the same."""

    name = "whole"

    def refusal(self, node: SplitNode, workers: int) -> str:
        return ""

    def layout(self, node: SplitNode, workers: int) -> Layout:
        return Layout((WHOLE,) * len(node.takes), WHOLE, {})


_ALL: tuple[Split, ...] = (
    Columns(),
    Rows(),
    Heads(),
    Channels(),
    Samples(),
    Vocabulary(),
    Experts(),
    Cannon(),
    Whole(),
)
#: The ways that a user may name for a layer.
WAYS: dict[str, Split] = {each.name: each for each in _ALL}
SPLITS: dict[str, Split] = {**WAYS, Replica.name: Replica(), Strips.name: Strips()}
