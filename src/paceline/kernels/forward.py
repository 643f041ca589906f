"""The way forward of networks of one shape as generated code: what an evaluation computes.

Dropout is left out, as a module in evaluation mode leaves it out. Networks that compute something else then, as by
batch norm's running statistics, are refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn

from paceline.kernels.build import library
from paceline.kernels.checks import check_samples
from paceline.kernels.compiled import CompiledCall, canonical, tensors_of, view_of
from paceline.kernels.cpu import vector_target
from paceline.kernels.graph import describe
from paceline.kernels.layers.base import CannotFuse, Graph, Layer
from paceline.kernels.losses import loss_kind
from paceline.kernels.lower import lower
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import CHUNKS, Plan, make
from paceline.kernels.printers.access import Access
from paceline.kernels.printers.cpp import part, text
from paceline.kernels.weights import REALS, OneModel, tensors_by_name, weights_of

MANY = 16  # samples in a batch, from which on vectors hold samples
TEAM = 16  # numbers of the row of work


class Forward:
    """Computes the scores of networks of one shape; any number of threads may call it at once."""

    def __init__(self, model: nn.Module, loss: Callable[..., object], x: Tensor) -> None:
        """Compile for samples such as `x`, for models such as this one in training mode."""
        self.dtype = OneModel(model).dtype
        self.tokens = not x.is_floating_point()
        kind = loss_kind(loss)
        #: Whether the model ends in a log-softmax, which is part of the loss in generated code.
        self.logarithms = kind.of_logarithms
        self.plan = self._planned(model, loss, tuple(x.shape[1:]))
        if len(self.plan.phases) > 1:
            raise CannotFuse(f"the layer {self.plan.program.batch_norm} computes something else in evaluation mode")
        program = self.plan.program
        #: Of a sample's scores in generated code: where each place has a class, its classes stand side by side.
        self.shape = (*program.places, program.outputs) if kind.labels else program.result
        self.classes_last = kind.last or not program.places
        scores, length = Access(self.plan).pointer("scores"), prod(self.shape)
        defines = f"#define SCORES {scores}\n#define SCORES_LENGTH {length}"
        source = "\n".join([text(self.plan, Rule()), defines, part("scores")])
        self.function = library(source)[0].paceline_scores
        self.function.argtypes, self.function.restype = [ctypes.c_void_p, ctypes.c_void_p], None

    def _planned(self, model: nn.Module, loss: Callable[..., object], shape: tuple[int, ...]) -> Plan:
        graph = still(canonical(describe(model, shape, self.tokens), model))
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(graph, model).items()}
        program = lower(graph, shapes, set(), loss_kind(loss))
        program.forward, program.backward = program.forward[:-1], []  # without the loss
        return make(program, vector_target(REALS[self.dtype], MANY))

    @torch.no_grad()
    def scores(self, model: nn.Module, x: Tensor) -> Tensor:
        """Return the model's outputs for samples, as it computes them in evaluation mode."""
        plan, lanes = self.plan, self.plan.target.lanes
        x = x.to(torch.long if self.tokens else self.dtype).contiguous()
        order = torch.arange(len(x))
        check_samples(plan, False, x, x.new_empty(len(x), *plan.program.result), order)
        memory = {
            "weights": torch.zeros(max(1, plan.sizes["weights"]), dtype=self.dtype),
            "gradients": torch.zeros(max(1, plan.sizes["weights"]), dtype=self.dtype),
            "lane_gradients": torch.zeros(max(1, plan.sizes["lanes"] * lanes * CHUNKS), dtype=self.dtype),
            "arenas": torch.zeros(max(1, plan.sizes["arena"] * lanes), dtype=self.dtype),
            "tokens" if self.tokens else "x": x,
            "order": order,
        }
        tensors = {**tensors_by_name(model), **plan.program.numbers}
        for name in weights_of(plan):
            view_of(memory["weights"], plan, name, tensors[name].shape).copy_(tensors[name])
        outputs = torch.empty(len(x), *self.shape, dtype=self.dtype)
        call = CompiledCall(**{name: tensor.data_ptr() for name, tensor in memory.items()}, samples=len(x))
        self.function(ctypes.byref(call), outputs.data_ptr())
        outputs = outputs.log_softmax(-1) if self.logarithms else outputs
        return outputs if self.classes_last else outputs.movedim(-1, 1)


def still(graph: Graph) -> Graph:
    """The same graph without anything that draws random numbers."""
    instead = {layer.name: layer.inputs[0] for layer in graph.layers if layer.kind == "dropout"}

    def source(name: str) -> str:
        return source(instead[name]) if name in instead else name

    def stilled(layer: Layer) -> Layer:
        options = {**layer.options, "rate": 0.0} if "rate" in layer.options else layer.options
        return replace(layer, inputs=tuple(map(source, layer.inputs)), options=options)

    layers = tuple(stilled(layer) for layer in graph.layers if layer.name not in instead)
    return replace(graph, layers=layers, result=source(graph.result))
