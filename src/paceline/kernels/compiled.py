"""A plan with its program and its memory; and how a plan is made from a module."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from paceline.kernels.layers.base import Graph, Layer
from paceline.kernels.lower import lower
from paceline.kernels.memory import Target
from paceline.kernels.plan import Plan, make


class Call(ctypes.Structure):
    """What the generated code is called with; `printers/call.hpp` has the same fields in the same order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "weights", "gradients", "lane_gradients", "state", "arenas", "x", "tokens", "targets", "labels", "order",
            "settings", "team", "losses", "seeds", "rates",
        )),
        *((name, ctypes.c_int64) for name in ("samples", "batch", "updates", "threads", "update", "seed")),
    ]  # fmt: skip


@dataclass
class Compiled:
    """A plan with its program and its memory."""

    plan: Plan
    batch_size: int
    source: str
    #: The text, compiled; of the processor's own class.
    program: Any
    #: How long it took to make all of this.
    seconds: float
    #: What calls read and write, by the names that `Call` has for them.
    memory: dict[str, Tensor]
    #: Views of the padded memory, in the shapes of `tensors`.
    weights: list[Tensor]
    #: The module's own parameters and moving buffers.
    tensors: list[Tensor]
    #: Views of the first chunk's gradient, by the parameter's name.
    gradients: dict[str, Tensor]


# --- from a module to a plan ----------------------------------------------------------------------------------------


def canonical(graph: Graph, model: nn.Module) -> Graph:
    """Tied parameters by one name: the first that the module gives them."""
    named = {id(t): name for name, t in [*model.named_buffers(), *model.named_parameters()]}

    def renamed(layer: Layer) -> Layer:
        found = {word: named[id(_tensor(model, path.lstrip(".")))] for word, path in layer.weights.items()}
        return replace(layer, weights=found)

    return replace(graph, layers=tuple(map(renamed, graph.layers)))


def _tensor(model: nn.Module, path: str) -> Tensor:
    """A parameter or buffer of a module by its dotted name."""
    folder, _, name = path.rpartition(".")
    found: Tensor = getattr(model.get_submodule(folder), name)
    return found


def tensors_of(graph: Graph, model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that a graph's layers read, by name."""
    return {name: _tensor(model, name) for layer in graph.layers for name in layer.weights.values()}


def plan_of(graph: Graph, tensors: dict[str, Tensor], trained: set[str], loss: str, target: Target) -> Plan:
    """The plan of a graph, for parameters of these shapes of which `trained` get a gradient."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return make(lower(graph, shapes, trained & set(shapes), loss), target)


def view_of(memory: Tensor, plan: Plan, name: str, shape: torch.Size) -> Tensor:
    """A parameter in padded memory, without the padding."""
    place = plan.places[name]
    whole = memory[place.start : place.start + prod(place.shape)].view(place.shape)
    return whole[..., : shape[-1]] if place.shape != tuple(shape) else whole
