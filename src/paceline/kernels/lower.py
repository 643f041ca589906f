"""From a graph to the program of one sample."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from paceline.kernels.adjoint import derive
from paceline.kernels.ir import Kind, Loss, Program
from paceline.kernels.layers import LOWER
from paceline.kernels.layers.base import CannotFuse, Graph, Layer, Shape
from paceline.kernels.losses import LossText


def lower(graph: Graph, weights: Mapping[str, Shape], trained: set[str], loss: LossText) -> Program:
    """The program of a graph. `weights` are the module's parameters and moving buffers, by name."""
    program = Program(inputs=graph.inputs, tokens=graph.tokens)
    program.new("input", graph.inputs)
    for name, shape in weights.items():
        program.new(name, shape, Kind.WEIGHT)
    values = {"input": "input"}
    for number, layer in enumerate(_before_logarithms(graph, loss)):
        values[layer.name] = LOWER[layer.kind](program, layer, [values[name] for name in layer.inputs], number)
    ends = next((layer.inputs[0] for layer in graph.layers if layer.kind == "log_softmax"), graph.result)
    result = values[ends]
    program.result = program.shape(result)
    program.outputs = prod(program.result)
    if loss.labels and len(program.result) != 1:
        raise CannotFuse(
            f"the model gives scores of shape {program.result}; cross entropy has a kernel for a row of them per sample"
        )
    scores = program.view("scores", result, (program.outputs,))
    program.forward.append(Loss(loss.name, scores, loss.number, loss.labels))
    derive(program, trained)
    return program


def _before_logarithms(graph: Graph, loss: LossText) -> tuple[Layer, ...]:
    """The layers, without the log-softmax at the end that a loss of logarithms wants: cross entropy contains it."""
    ends = [layer for layer in graph.layers if layer.kind == "log_softmax"]
    if loss.of_logarithms != bool(ends) or any(layer.name != graph.result for layer in ends):
        raise CannotFuse(
            "log_softmax has a kernel where a model ends in it and the loss is nn.NLLLoss, and that loss only there"
        )
    if any(layer.kind == "softmax" for layer in graph.layers):
        raise CannotFuse("softmax has no kernel; let the model end in its scores, with nn.CrossEntropyLoss")
    return tuple(layer for layer in graph.layers if layer not in ends)
