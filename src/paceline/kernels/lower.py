"""From a graph to the program of one sample."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from paceline.kernels.adjoint import derive
from paceline.kernels.ir import Apply, Kind, Loop, Loss, Program, Ref, Tokens, at
from paceline.kernels.layers import LOWER, VIEWS
from paceline.kernels.layers.base import CannotFuse, Graph, Layer, Shape
from paceline.kernels.losses import LossText
from paceline.kernels.refusal import RESERVED, mistaken


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
