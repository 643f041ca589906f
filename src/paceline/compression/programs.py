"""Networks whose layers have no form in whole numbers, as programs of `kernels.ir`: LSTM, attention, embeddings, ...

Their statements are what `kernels` trains, without what only training needs: dropout is gone, batch-norm is a factor
and a shift, and a log-softmax or softmax at the end is left out, since it changes no order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from paceline.compression.network import CannotEmit
from paceline.kernels.compiled import canonical, tensors_of
from paceline.kernels.functions import functions_of
from paceline.kernels.ir import Apply, Kind, Lookup, Op, Program, Ref, Tokens, at
from paceline.kernels.layers.base import Graph, Layer, everywhere
from paceline.kernels.lower import begin, written

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
