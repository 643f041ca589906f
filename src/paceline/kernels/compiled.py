"""A plan with its program and its memory; and how a plan is made from a module."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from paceline.kernels.layers.base import Graph, Layer
from paceline.kernels.losses import LossText
from paceline.kernels.lower import lower
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan, make

#: What generated code does in a second, about: operations for each byte of a vector, and weights that are changed.
FLOPS, WEIGHTS = 6e8, 1e9


class CompiledCall(ctypes.Structure):
    """What the generated code is called with; `printers/call.hpp` has the same fields in the same order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "weights", "gradients", "lane_gradients", "state", "arenas", "x", "tokens", "targets", "labels", "order",
            "settings", "team", "losses", "seeds", "rates", "notes", "doing",
            "clipping", "exchange",
        )),
        *((name, ctypes.c_int64) for name in (
            "samples", "batch", "updates", "threads", "update", "seed", "first", "stride", "chunk", "pace", "still",
        )),
    ]  # fmt: skip


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


# --- from a module to a plan ----------------------------------------------------------------------------------------


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
