"""The module's tensors, by one name each, and where each lies in padded memory."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn

from paceline.kernels.graph import Graph, Layer
from paceline.kernels.lower import lower
from paceline.kernels.memory import Target
from paceline.kernels.plan import Plan, make


def canonical(graph: Graph, model: nn.Module) -> Graph:
    """Tied parameters by one name: the first that the module gives them."""
    named = {id(t): name for name, t in [*model.named_buffers(), *model.named_parameters()]}

    def renamed(layer: Layer) -> Layer:
        found = {word: named[id(tensor_of(model, path.lstrip(".")))] for word, path in layer.weights.items()}
        return replace(layer, weights=found)

    return replace(graph, layers=tuple(map(renamed, graph.layers)))


def tensor_of(model: nn.Module, path: str) -> Tensor:
    folder, _, name = path.rpartition(".")
    found: Tensor = getattr(model.get_submodule(folder), name)
    return found


def tensors_of(graph: Graph, model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor_of(model, name) for layer in graph.layers for name in layer.weights.values()}


def plan_of(graph: Graph, tensors: dict[str, Tensor], trained: set[str], loss: str, target: Target) -> Plan:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return make(lower(graph, shapes, trained & set(shapes), loss), target)


def view(memory: Tensor, plan: Plan, name: str, shape: torch.Size) -> Tensor:
    """A parameter in padded memory, without the padding."""
    place = plan.places[name]
    whole = memory[place.start : place.start + prod(place.shape)].view(place.shape)
    return whole[..., : shape[-1]] if place.shape != tuple(shape) else whole
