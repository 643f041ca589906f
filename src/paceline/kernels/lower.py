"""From a graph to the program of one sample."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from paceline.kernels.adjoint import derive
from paceline.kernels.ir import Kind, Loss, Program
from paceline.kernels.layers import LOWER
from paceline.kernels.layers.base import CannotFuse, Graph, Shape


def lower(graph: Graph, weights: Mapping[str, Shape], trained: set[str], loss: str) -> Program:
    """The program of a graph. `weights` are the module's parameters and moving buffers, by name."""
    program = Program(inputs=graph.inputs, tokens=graph.tokens)
    program.new("input", graph.inputs)
    for name, shape in weights.items():
        program.new(name, shape, Kind.WEIGHT)
    values = {"input": "input"}
    for number, layer in enumerate(graph.layers):
        values[layer.name] = LOWER[layer.kind](program, layer, [values[name] for name in layer.inputs], number)
    result = values[graph.result]
    program.result = program.shape(result)
    program.outputs = prod(program.result)
    if loss == "cross_entropy" and len(program.result) != 1:
        raise CannotFuse(
            f"the model gives scores of shape {program.result}; cross entropy has a kernel for a row of them per sample"
        )
    scores = program.view("scores", result, (program.outputs,))
    program.forward.append(Loss(loss, scores))
    derive(program, trained)
    return program
