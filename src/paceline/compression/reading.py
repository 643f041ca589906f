"""From a trained module to a `Network`: layers as `kernels.graph` describes them, with their weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor, nn

from paceline.compression.network import (
    ENDS,
    INPUT,
    Affine,
    CannotEmit,
    Function,
    Geometry,
    Image,
    LayerProgram,
    MaxPooling,
    Network,
    Pair,
    Step,
    Sum,
    Window,
    moments,
    program_of,
    refuse_within,
    with_functions,
)
from paceline.kernels.functions import applied
from paceline.kernels.graph import describe
from paceline.kernels.ir import Expression, FunctionCall, Number, Op, Ref
from paceline.kernels.layers.base import CannotFuse, Graph, Layer

#: Activations that have a table, and what computes them.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "silu": nn.functional.silu,
}


def function_of(name: str) -> Callable[[Tensor], Tensor]:
    """What computes an activation in PyTorch."""
    return FUNCTIONS[name] if name in FUNCTIONS else lambda x: _evaluated(applied(name, ARGUMENT), x)


ARGUMENT = Ref("x", ())
#: What the formulas of activations call.
CALLED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "reciprocal": torch.reciprocal,
    "step": lambda x: (x > 0).to(x.dtype),
}
SIGNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div}


def _evaluated(value: Expression, x: Tensor) -> Tensor:
    match value:
        case Number(number):
            return torch.tensor(number, dtype=x.dtype)
        case Op(sign, left, right):
            return SIGNS[sign](_evaluated(left, x), _evaluated(right, x))
        case FunctionCall(function, argument):
            return CALLED[function](_evaluated(argument, x))
    return x


REMEDY = "`--precision-only` compares float32, bfloat16 and int8 of any model"


def graph_of(module: nn.Module, x: Tensor) -> Graph:
    """Describe a module's layers for samples like these; what `kernels` cannot follow is refused with a way out."""
    try:
        return describe(copy.deepcopy(module).train(), tuple(x.shape[1:]), not x.is_floating_point())
    except CannotFuse as error:
        raise CannotEmit(f"{str(error).partition('; compute=')[0]}; {REMEDY}") from error


def network_of(module: nn.Module, x: Tensor) -> Network | LayerProgram:
    """Return what a trained module computes: steps, which have a form in whole numbers, or else a program."""
    graph = graph_of(module, x)
    try:
        return network_of_graph(module, graph)
    except CannotEmit as error:
        return program_of(module, graph, str(error))


def read(module: nn.Module, sample: tuple[int, ...]) -> Network:
    """Return the steps that a trained module computes for samples of this shape."""
    return network_of_graph(module, graph_of(module, torch.empty(1, *sample)))


def network_of_graph(module: nn.Module, graph: Graph) -> Network:
    """Return the steps of a graph; a layer that has no form in whole numbers is refused by name."""
    state = {name: tensor.detach().float() for name, tensor in module.state_dict().items()}
    reader = _ModuleReader(graph, state)
    for layer in graph.layers:
        row = ROWS.get(layer.kind)
        if row is None:
            raise CannotEmit(f"layer {layer.name} ({layer.kind}) has no form in whole numbers")
        reader.add(layer, row)
    steps = tuple(with_functions(reader.steps, reader.alias[graph.result]))
    if not steps:
        raise CannotEmit("the model computes nothing: there is no layer in it to compress")
    last = next(layer for layer in graph.layers if layer.name == graph.result)
    return Network(reader.inputs, steps, graph.inputs, tuple(last.shape), last.kind if last.kind in ENDS else "")


@dataclass
class _ModuleReader:
    """The steps so far."""

    graph: Graph
    state: dict[str, Tensor]
    steps: list[Step] = field(default_factory=list)
    #: A layer's name -> the step whose numbers it gives; several layers may be views of one step.
    alias: dict[str, str] = field(default_factory=lambda: {INPUT: INPUT})
    #: The shape of the input, as its first reader sees it.
    inputs: Image = (1, 1, 1)

    def __post_init__(self) -> None:
        self.inputs = image(self.graph.inputs)

    def shape(self, name: str) -> Image:
        source = self.alias[name]
        return self.inputs if source == INPUT else next(s.shape for s in self.steps if s.name == source)

    def weight(self, layer: Layer, word: str) -> Tensor | None:
        name = layer.weights.get(word)
        return None if name is None else self.state[name.removeprefix(".")]  # a dense layer alone

    def add(self, layer: Layer, row: Callable[[_ModuleReader, Layer], Step | None]) -> None:
        """Add a layer's step; a layer without one is a view of the step before it."""
        step = row(self, layer)
        self.alias[layer.name] = self.alias[layer.inputs[0]] if step is None else layer.name
        if step is not None:
            self.steps.append(step)


def image(shape: tuple[int, ...]) -> Image:
    """A shape as that of an image."""
    if len(shape) == 3:
        return (shape[0], shape[1], shape[2])
    return (shape[0], 1, shape[1]) if len(shape) == 2 else (prod(shape), 1, 1)


def _pair(value: tuple[int, ...], neutral: int) -> Pair:
    return (neutral, value[0]) if len(value) == 1 else (value[0], value[1])


def _geometry(layer: Layer) -> Geometry:
    words = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1}
    options = {w: _pair(tuple(layer.options[w]), neutral) for w, neutral in words.items() if w in layer.options}
    return Geometry(**options)


def _convolution(reader: _ModuleReader, layer: Layer) -> Step:
    weight = reader.weight(layer, "weight")
    assert weight is not None
    geometry, groups, source = _geometry(layer), layer.options["groups"], reader.alias[layer.inputs[0]]
    weight = weight.reshape(*weight.shape[:2], *geometry.kernel)
    outputs, each = weight.shape[:2]
    bias = reader.weight(layer, "bias")
    bias = torch.zeros(outputs) if bias is None else bias
    shape = image(layer.shape)
    if groups == outputs and each == 1:
        return Window(layer.name, source, shape, geometry, weight[:, 0], bias)
    if groups > 1:  # all channels, with zeros where a group does not look
        dense_weight = torch.zeros(outputs, each * groups, *geometry.kernel)
        for out in range(outputs):
            first = out // (outputs // groups) * each
            dense_weight[out, first : first + each] = weight[out]
        weight = dense_weight
    return Affine(layer.name, source, shape, geometry, weight, bias)


def _linear(reader: _ModuleReader, layer: Layer) -> Step:
    weight, bias = reader.weight(layer, "weight"), reader.weight(layer, "bias")
    assert weight is not None
    if len(layer.shape) > 1:
        raise CannotEmit(
            f"layer {layer.name} is a dense layer on each step of a sequence, which has no form in whole numbers"
        )
    channels, height, width = reader.shape(layer.inputs[0])
    weight = weight.reshape(len(weight), channels, height, width)
    bias = torch.zeros(len(weight)) if bias is None else bias
    return Affine(
        layer.name, reader.alias[layer.inputs[0]], image(layer.shape), Geometry((height, width)), weight, bias
    )


def _average(reader: _ModuleReader, layer: Layer) -> Step:
    geometry = _geometry(layer)
    weight = torch.full((1, *geometry.kernel), 1.0 / prod(geometry.kernel))
    shape = image(layer.shape)
    return Window(layer.name, reader.alias[layer.inputs[0]], shape, geometry, weight, torch.zeros(shape[0]))


def _mean(reader: _ModuleReader, layer: Layer) -> Step:
    """Over all pixels it is an average over a window of the whole image."""
    source = layer.inputs[0]
    before = next((each.shape for each in reader.graph.layers if each.name == source), reader.graph.inputs)
    if not is_over_pixels(layer, before):
        raise CannotEmit(f"layer {layer.name} is a mean over other numbers than all pixels: no form in whole numbers")
    channels, height, width = reader.shape(source)
    weight = torch.full((1, height, width), 1.0 / (height * width))
    geometry = Geometry((height, width))
    return Window(layer.name, reader.alias[source], (channels, 1, 1), geometry, weight, torch.zeros(channels))


def is_over_pixels(layer: Layer, shape: tuple[int, ...]) -> bool:
    """Whether a mean over samples of this shape is one of all pixels of each channel."""
    return len(shape) > 1 and layer.options["share"] != 1 and layer.options["dimensions"] == tuple(range(1, len(shape)))


def _scale(reader: _ModuleReader, layer: Layer) -> Step:
    """A factor and a shift that all numbers share."""
    shape = reader.shape(layer.inputs[0])
    weight = torch.full((1, 1, 1), layer.options["factor"])
    bias = torch.full((shape[0],), layer.options["shift"])
    return Window(layer.name, reader.alias[layer.inputs[0]], shape, Geometry(), weight, bias)


def _subsampling(reader: _ModuleReader, layer: Layer) -> Step:
    weight, bias = reader.weight(layer, "weight"), reader.weight(layer, "bias")
    assert weight is not None
    assert bias is not None
    kernel, shape = _pair(layer.options["kernel"], 1), image(layer.shape)
    source = reader.alias[layer.inputs[0]]
    return Window(layer.name, source, shape, Geometry(kernel, kernel), weight[0], bias.expand(shape[0]).clone())


def _max_pooling(reader: _ModuleReader, layer: Layer) -> Step:
    return MaxPooling(layer.name, reader.alias[layer.inputs[0]], image(layer.shape), _geometry(layer))


def _activation(reader: _ModuleReader, layer: Layer) -> Step:
    source = layer.inputs[0]
    return Function(layer.name, reader.alias[source], reader.shape(source), layer.options["function"])


def _add(reader: _ModuleReader, layer: Layer) -> Step:
    left, right = layer.inputs
    return Sum(layer.name, reader.alias[left], reader.alias[right], reader.shape(left))


def _dropout(reader: _ModuleReader, layer: Layer) -> None:
    """Inference has no dropout."""


def _end(reader: _ModuleReader, layer: Layer) -> None:
    """Take a layer at the end that changes no order, such as a softmax."""
    refuse_within(layer, reader.graph)


def _reshape(reader: _ModuleReader, layer: Layer) -> None:
    """A view, where numbers keep their order with the channels of a pixel side by side."""
    source, shape = reader.alias[layer.inputs[0]], image(layer.shape)
    if source == INPUT and not any(INPUT in step.sources for step in reader.steps):
        reader.inputs = shape
        return
    channels, height, width = reader.shape(layer.inputs[0])
    if len(layer.shape) > 1 and shape != (channels, height, width):
        raise CannotEmit(
            f"layer {layer.name} makes {shape} of {(channels, height, width)} within the network, which has no form "
            "in whole numbers"
        )


def _batch_norm(reader: _ModuleReader, layer: Layer) -> Step | None:
    """A factor and a shift for each channel, which the layer before takes over if nothing else reads it."""
    scale, shift = moments(layer, reader.state)
    source = reader.alias[layer.inputs[0]]
    readers = sum(layer.inputs[0] in other.inputs for other in reader.graph.layers)
    before = reader.steps[-1] if reader.steps else None
    if isinstance(before, Affine) and before.name == source and readers == 1 and reader.graph.result != layer.inputs[0]:
        folded = before.weight * scale[:, None, None, None]
        reader.steps[-1] = replace(before, weight=folded, bias=before.bias * scale + shift)
        return None
    shape = reader.shape(layer.inputs[0])
    return Window(layer.name, source, shape, Geometry((1, 1)), scale[:, None, None], shift)


ROWS: dict[str, Callable[[_ModuleReader, Layer], Step | None]] = {
    "convolution": _convolution,
    "linear": _linear,
    "average_pooling": _average,
    "mean": _mean,
    "scale": _scale,
    "subsampling": _subsampling,
    "highest_pooling": _max_pooling,
    "activation": _activation,
    "add": _add,
    "dropout": _dropout,
    "log_softmax": _end,
    "softmax": _end,
    "reshape": _reshape,
    "batch_norm": _batch_norm,
}
