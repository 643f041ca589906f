"""How a module becomes a plan: its graph lowered to the program of one sample, then a plan, and memory for it."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from paceline.kernels.adjoint import derive
from paceline.kernels.ir import RESERVED, Apply, Kind, Loop, Loss, Program, Ref, Tokens, at, mistaken
from paceline.kernels.layers import LOWER, VIEWS
from paceline.kernels.layers.base import CannotFuse, Graph, Layer, Shape
from paceline.kernels.losses import LossText
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan, make

#: What generated code does in a second, about: operations for each byte of a vector, and weights that are changed.
FLOPS, WEIGHTS = 6e8, 1e9


class CompiledCall(ctypes.Structure):
    """What the generated code is called with; `printers/call.hpp` has the same fields in the same order."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in (
                "weights",
                "gradients",
                "lane_gradients",
                "state",
                "arenas",
                "x",
                "tokens",
                "targets",
                "labels",
                "order",
                "settings",
                "team",
                "losses",
                "seeds",
                "rates",
                "notes",
                "doing",
                "clipping",
                "exchange",
            )
        ),
        *(
            (name, ctypes.c_int64)
            for name in (
                "samples",
                "batch",
                "updates",
                "threads",
                "update",
                "seed",
                "first",
                "stride",
                "chunk",
                "pace",
                "still",
            )
        ),
    ]


@dataclass(frozen=True)
class Draft:
    """A text before it is compiled."""

    plan: Plan
    #: The optimizer's step, as the text has it.
    rule: Rule
    source: str

    @property
    def digest(self) -> str:
        """A name of the text by its content."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]

    def seconds(self, batch: int) -> float:
        """Seconds of an update by one thread, about."""
        return self.plan.flops * batch / (FLOPS * self.plan.target.bytes) + self.plan.sizes["weights"] / WEIGHTS


@dataclass
class Compiled:
    """A plan with its program and its memory."""

    plan: Plan
    #: The optimizer's step, as the text has it.
    rule: Rule
    batch_size: int
    source: str
    #: The text, compiled; of the processor's own class.
    program: Any
    #: How long it took to make all of this.
    seconds: float
    #: What calls read and write, by the names that `CompiledCall` has for them.
    memory: dict[str, Tensor]
    #: Views of the padded memory, in the shapes of `tensors`.
    weights: list[Tensor]
    #: The module's own parameters and moving buffers.
    tensors: list[Tensor]
    #: Views of the first chunk's gradient, by the parameter's name.
    gradients: dict[str, Tensor]
    #: Whether it was compared with PyTorch, or need not be.
    compared: bool = False

    def take_weights(self) -> None:
        """Copies the module's tensors into the padded memory; one that lies there already is not copied."""
        apart = [pair for pair in zip(self.weights, self.tensors, strict=True) if _apart(*pair)]
        if apart:
            torch._foreach_copy_([view for view, _ in apart], [tensor for _, tensor in apart])

    def give_weights(self, tensors: Sequence[Tensor] | None = None) -> None:
        """Copies the padded memory back into the module's tensors, or into some of them."""
        ids = None if tensors is None else set(map(id, tensors))
        pairs = zip(self.weights, self.tensors, strict=True)
        apart = [pair for pair in pairs if _apart(*pair) and (ids is None or id(pair[1]) in ids)]
        if apart:
            torch._foreach_copy_([tensor for _, tensor in apart], [view for view, _ in apart])


def _apart(view: Tensor, tensor: Tensor) -> bool:
    """Whether a tensor of the module does not lie in generated code's memory."""
    return view.data_ptr() != tensor.data_ptr()


# from a module to a plan.


def canonical(graph: Graph, model: nn.Module) -> Graph:
    """Tied parameters by one name: the first that the module gives them."""
    named = {id(t): name for name, t in [*model.named_buffers(), *model.named_parameters()]}

    def own(path: str) -> str:
        return path if path in graph.numbers else named[id(_tensor(model, path.lstrip(".")))]

    def renamed(layer: Layer) -> Layer:
        weights = {word: own(path) for word, path in layer.weights.items()}
        return replace(layer, weights=weights)

    return replace(graph, layers=tuple(map(renamed, graph.layers)))


def _tensor(model: nn.Module, path: str) -> Tensor:
    """A parameter or buffer of a module by its dotted name."""
    folder, _, name = path.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(folder), name)
    return tensor


def tensors_of(graph: Graph, model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that a graph's layers read, by name."""
    names = [name for layer in graph.layers for name in layer.weights.values()]
    return {name: graph.numbers[name] if name in graph.numbers else _tensor(model, name) for name in names}


def plan_of(graph: Graph, tensors: dict[str, Tensor], trained: set[str], loss: LossText, target: Target) -> Plan:
    """The plan of a graph, for parameters of these shapes of which `trained` get a gradient."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return make(lower(graph, shapes, trained & set(shapes), loss), target)


def view_of(memory: Tensor, plan: Plan, name: str, shape: torch.Size) -> Tensor:
    """A parameter in padded memory, without the padding."""
    place = plan.places[name]
    padded = memory[place.start : place.start + prod(place.shape)].view(place.shape)
    return padded[..., : shape[-1]] if place.shape != tuple(shape) else padded


# From a graph to the program of one sample.


def lower(graph: Graph, weights: Mapping[str, Shape], trained: set[str], loss: LossText) -> Program:
    """The program of a graph. `weights` are the module's parameters and moving buffers, by name."""
    program = Program(inputs=graph.inputs, tokens=graph.tokens, numbers=dict(graph.numbers))
    program.new("input", graph.inputs)
    for name, shape in weights.items():
        if name in RESERVED:
            raise mistaken(name)
        program.new(name, shape, Kind.WEIGHT)
    values = {"input": "input"}
    begin(program)
    for number, layer in enumerate(_before_logarithms(graph, loss)):
        values[layer.name] = written(program, layer, values, number)
    last = next((layer for layer in graph.layers if layer.name == graph.result), None)
    result = values[last.inputs[0] if last is not None and graph.result not in values else graph.result]
    program.result = program.shape(result)
    program.outputs, classes = prod(program.result), program.result
    if loss.labels:
        if not program.result:
            raise CannotFuse("the model gives one number for a sample; cross entropy wants a score for each class")
        result, classes = _rows_of_classes(program, result, loss)
        program.places, program.outputs = classes[:-1], classes[-1]
    scores = program.view("scores", result, (prod(classes),))
    custom_loss = None if loss.expression is None else (loss.expression, loss.slope())
    program.forward.append(
        Loss(
            loss.name,
            scores,
            loss.number,
            loss.labels,
            places=prod(program.places),
            weights=loss.weights,
            ignored=loss.ignored,
            own=custom_loss,
        )
    )
    derive(program, trained)
    return program


def begin(program: Program) -> None:
    """Says where in the input its numbers are."""
    program.columns["input"] = torch.arange(prod(program.inputs)).view(program.inputs)


def written(program: Program, layer: Layer, values: Mapping[str, str], number: int) -> str:
    """The buffer of a layer's result, its statements appended; `values` are the buffers of the layers before it."""
    sources = [values[name] for name in layer.inputs]
    if program.tokens and "input" in sources and layer.kind != "embedding":
        sources = [_numbers(program) if source == "input" else source for source in sources]
    result = LOWER[layer.kind](program, layer, sources, number)
    if len(sources) == 1 and sources[0] in program.columns and layer.kind in VIEWS:
        program.columns[result] = VIEWS[layer.kind](layer, program.columns[sources[0]])
    return result


def _numbers(program: Program) -> str:
    """The tokens as numbers like others."""
    name = "input.numbers"
    if name not in program.buffers:
        program.forward.append(Tokens(program.new(name, program.inputs)))
        program.columns[name] = program.columns["input"]
    return name


def _rows_of_classes(program: Program, result: str, loss: LossText) -> tuple[str, Shape]:
    """The scores of each place's classes side by side: (buffer, its shape)"""
    shape = program.shape(result)
    if len(shape) > 1 and not loss.last:
        loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(shape))
        source = Ref(result, at(*(loop.name for loop in loops)))
        shape = (*shape[1:], shape[0])
        rows = Ref(program.new("rows_of_scores", shape), (*source.index[1:], source.index[0]))
        program.forward.append(Apply(loops, rows, source, layer="loss"))
        result = rows.buffer
    classes = len(loss.weights) or loss.classes or shape[-1]
    if classes != shape[-1]:
        raise CannotFuse(f"the loss is one of {classes} classes, and the model gives scores of {shape[-1]}")
    return result, shape


def _before_logarithms(graph: Graph, loss: LossText) -> tuple[Layer, ...]:
    """The layers, without the log-softmax at the end that a loss of logarithms wants: cross entropy contains it."""
    dimension = -1 if loss.last else 0
    ends = [
        layer
        for layer in graph.layers
        if layer.kind == "log_softmax"
        and layer.name == graph.result
        and layer.options["dimension"] == dimension % len(layer.shape)
    ]
    if not loss.of_logarithms:
        return graph.layers
    if not ends:
        raise CannotFuse(
            "nn.NLLLoss has a kernel where the model ends in a log-softmax; nn.CrossEntropyLoss takes scores"
        )
    return tuple(layer for layer in graph.layers if layer not in ends)
