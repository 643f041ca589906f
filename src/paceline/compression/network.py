"""A trained network for inference, as data: what its layers compute once, without what only training needs.

Every layer is one of five steps on images of shape (channels, height, width), of which a row of numbers is one of a
single pixel. Dropout is gone, batch-norm is part of the layer before it, and an activation belongs to the sum that it
follows.

    Affine       sums of products over a window of all channels: dense layers and convolutions
    Window       sums of products over a window of each channel: average and trainable pooling, depthwise convolutions
    MaxPooling   the maximum over a window of each channel
    Sum          two values, number by number
    Function     an activation that follows none of the above
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from paceline.errors import JobError
from paceline.kernels.compiled import begin, canonical, tensors_of, written
from paceline.kernels.functions import functions_of
from paceline.kernels.ir import Apply, Kind, Lookup, Op, Program, Ref, Tokens, at
from paceline.kernels.layers.base import Graph, Layer, everywhere

Image = tuple[int, int, int]
Pair = tuple[int, int]
INPUT = "input"


class CannotEmit(JobError):
    """A layer that has no form in C."""


@dataclass(frozen=True)
class Geometry:
    """How a window moves over an image."""

    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)


@dataclass(frozen=True)
class Unary:
    """A step that reads one value."""

    name: str
    source: str
    shape: Image

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True)
class MaxPooling(Unary):
    """The maximum over a window of each channel."""

    geometry: Geometry


@dataclass(frozen=True)
class Weighted(Unary):
    """Sums of products over a window; `weight` is stored as the class says."""

    geometry: Geometry
    weight: Tensor
    bias: Tensor
    function: str = ""


class Affine(Weighted):
    """Sums of products over all channels; `weight` is [outputs, inputs, rows, columns]."""


class Window(Weighted):
    """Sums of products within each channel; `weight` is [channels or 1, rows, columns]."""


@dataclass(frozen=True)
class Function(Unary):
    """An activation at every place."""

    function: str


@dataclass(frozen=True)
class Sum:
    """Two values, number by number."""

    name: str
    left: str
    right: str
    shape: Image
    function: str = ""

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.left, self.right)


Step = Affine | Window | MaxPooling | Sum | Function


@dataclass(frozen=True)
class Network:
    """The steps of a network in order; the last one's value is the result."""

    inputs: Image
    steps: tuple[Step, ...]
    #: The shape of a sample as the model takes it, whose numbers lie in the order of `inputs`.
    sample: tuple[int, ...]
    #: The shape of one result as the model gives it.
    result: tuple[int, ...]
    #: The "log_softmax" or "softmax" that the model ends in, which is left out: it changes no order.
    end: str = ""

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def numbers_in(self) -> int:
        return prod(self.inputs)

    @property
    def numbers_out(self) -> int:
        return prod(self.last.shape)

    def shape(self, name: str) -> Image:
        """The shape of a step's value, or of the input."""
        return self.inputs if name == INPUT else next(step.shape for step in self.steps if step.name == name)

    def products(self) -> int:
        """The multiplications of one sample."""
        return sum(_products(step) for step in self.steps)

    def parameters(self) -> int:
        """The weights and biases."""
        return sum(step.weight.numel() + step.bias.numel() for step in self.steps if isinstance(step, Affine | Window))


def _products(step: Step) -> int:
    if isinstance(step, Affine):
        return step.shape[1] * step.shape[2] * step.weight.numel()
    return prod(step.shape) * prod(step.geometry.kernel) if isinstance(step, Window) else 0


def with_functions(steps: list[Step], result: str) -> Iterator[Step]:
    """Let activations belong to the sums that they follow, where nothing else reads the sums."""
    readers: dict[str, int] = {result: 1}
    for step in steps:
        for source in step.sources:
            readers[source] = readers.get(source, 0) + 1
    followed = {s.source: s for s in steps if isinstance(s, Function) and readers[s.source] == 1}
    fused = set()
    for step in steps:
        after = followed.get(step.name)
        if isinstance(step, Affine | Window | Sum) and not step.function and after is not None:
            fused.add(after.name)
            yield replace(step, name=after.name, function=after.function)
        elif step.name not in fused:
            yield step


# Networks whose layers have no form in whole numbers, as programs of `kernels.ir`: LSTM, attention, embeddings, ...
# Their statements are what `kernels` trains, without what only training needs: dropout is gone, batch-norm is a factor
# and a shift, and a log-softmax or softmax at the end is left out, since it changes no order.

#: What a model may end in without another order of its results; the C file gives the scores before it.
ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "log_softmax": lambda scores: scores.log_softmax(1),
    "softmax": lambda scores: scores.softmax(1),
}


@dataclass(frozen=True)
class LayerProgram:
    """A trained network as statements, with the numbers of its weights."""

    program: Program
    weights: Mapping[str, Tensor]
    #: The buffer that holds the result.
    output: str
    #: The shapes of a sample and of a result, as the model takes and gives them.
    sample: tuple[int, ...]
    result: tuple[int, ...]
    #: Why there is no form in whole numbers.
    why: str
    #: The log-softmax or softmax that the model ends in, which is left out.
    end: str

    @property
    def tokens(self) -> bool:
        """Whether a sample is whole numbers, such as the words of a text."""
        return self.program.tokens

    @property
    def numbers_in(self) -> int:
        return prod(self.sample)

    @property
    def numbers_out(self) -> int:
        return prod(self.result)

    def parameters(self) -> int:
        """The weights and biases."""
        return sum(tensor.numel() for tensor in self.weights.values())


def program_of(module: nn.Module, graph: Graph, why: str) -> LayerProgram:
    """Return what a trained module computes for one sample, statement by statement."""
    graph = canonical(graph, module)
    weights = {name: tensor.detach().float() for name, tensor in tensors_of(graph, module).items()}
    program = Program(inputs=graph.inputs, tokens=graph.tokens)
    program.new("input", graph.inputs)
    begin(program)
    for name, tensor in weights.items():
        program.new(name, tuple(tensor.shape), Kind.WEIGHT)
    values = {"input": "input"}
    for number, layer in enumerate(graph.layers):
        values[layer.name] = _lowered(program, weights, layer, values, number, graph)
    _refuse_unknown(program)
    last = next(layer for layer in graph.layers if layer.name == graph.result)
    end = last.kind if last.kind in ENDS else ""
    return LayerProgram(program, weights, values[graph.result], graph.inputs, last.shape, why, end)


def _lowered(
    program: Program, weights: dict[str, Tensor], layer: Layer, values: dict[str, str], number: int, graph: Graph
) -> str:
    """Add a layer's statements and return the buffer of its result."""
    refuse_within(layer, graph)
    if layer.kind in {"dropout", *ENDS}:
        return values[layer.inputs[0]]
    if layer.kind == "batch_norm":
        return _batch_norm(program, weights, layer, values[layer.inputs[0]])
    if layer.options.get("rate"):
        layer = replace(layer, options={**layer.options, "rate": 0.0})
    return written(program, layer, values, number)


#: Functions of one number that there are in C.
IN_C = ("sigmoid", "tanh", "relu", "gelu", "gelu_tanh", "silu", "exp", "reciprocal", "reciprocal_root")


def _refuse_unknown(program: Program) -> None:
    """Raise for statements and functions that have no form in C."""
    for it in program.forward:
        if isinstance(it, Tokens) or (isinstance(it, Lookup) and it.numbers):
            raise CannotEmit(f"layer {it.layer or 'input'} reads columns of numbers as rows of a table; no form in C")
        unknown = [f for f in (functions_of(it.value) if isinstance(it, Apply) else ()) if f not in IN_C]
        if unknown:
            raise CannotEmit(f"layer {it.layer} has the function {unknown[0]}, which has no form in C")


def refuse_within(layer: Layer, graph: Graph) -> None:
    """Raise if a log-softmax or a softmax is not the last layer."""
    if layer.kind in ENDS and layer.name != graph.result:
        raise CannotEmit(f"layer {layer.name} is a {layer.kind} within the network, which has no form in C")


def _batch_norm(program: Program, weights: dict[str, Tensor], layer: Layer, source: str) -> str:
    """A factor and a shift for each channel."""
    scale, shift = moments(layer, weights)
    loops, place = everywhere(program, source)
    channel_index = at("q0")
    names = f"{layer.name}.scale", f"{layer.name}.shift"
    for name, tensor in zip(names, (scale, shift), strict=True):
        weights[name] = tensor
        program.new(name, tuple(tensor.shape), Kind.WEIGHT)
    target = Ref(program.new(layer.name, layer.shape), place.index)
    value = Op("+", Op("*", place, Ref(names[0], channel_index)), Ref(names[1], channel_index))
    program.forward.append(Apply(loops, target, value, layer=layer.name))
    return layer.name


def moments(layer: Layer, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The factor and the shift that a batch-norm is once it is trained, of each channel."""
    tensors = {word: weights[name.removeprefix(".")] for word, name in layer.weights.items()}
    if "running_mean" not in tensors:
        raise CannotEmit(f"layer {layer.name} keeps no running statistics, so it computes nothing for one sample")
    scale = torch.rsqrt(tensors["running_var"] + layer.options["epsilon"])
    scale = scale * tensors["weight"] if "weight" in tensors else scale
    shift = -tensors["running_mean"] * scale
    return scale, shift + tensors["bias"] if "bias" in tensors else shift
