"""The outline of a model for its record: the layers with their sizes, and which one's output reaches which.

A layer is a module without modules in it, or one of PyTorch's own that holds parameters itself (attention does).
One forward pass shows which output reaches which layer: for every tensor it is tracked which layers it comes from,
through any function that the model calls between its layers, so a residual connection is found without being declared.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from paceline.algorithms.agenda import Chunk
from paceline.runtime.runs.record import LayerRecord
from paceline.training.data.order import Order
from paceline.training.data.source import Source
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job


def outline(job: Job, module: nn.Module, source: Source) -> list[LayerRecord]:
    """Describe the layers in the order of their first call. A layer that one small batch does not reach comes last."""
    model = copy.deepcopy(module)
    parts = list(_layers(model, ""))
    tracker = _Tracker()
    hooks = [hook for number, (_, part) in enumerate(parts) for hook in tracker.watch(number, part)]
    samples = min(job.batch_size, len(source))
    chunk = Chunk(0, 0, 0, 0, samples, 1.0)
    batch = source.batch(Order(len(source), job.seed, job.shuffle).indices(chunk), 0)
    # A model that cannot be run in this way (a step that makes gradients itself) has an outline without shapes.
    with contextlib.suppress(Exception), torch.no_grad(), tracker:
        Replica(job, model, ()).forward(model, chunk, batch)
    for hook in hooks:
        hook.remove()
    order = sorted(range(len(parts)), key=lambda n: (tracker.calls.get(n, len(parts)), n))
    position = {number: at for at, number in enumerate(order)}
    return [
        replace(
            _sizes(*parts[number]),
            output=tracker.outputs.get(number),
            after=tuple(sorted(position[n] for n in tracker.after.get(number, ()))),
        )
        for number in order
    ]


def _layers(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a module with their names."""
    children = dict(module.named_children())
    has_parameters = any(True for _ in module.parameters(recurse=False))
    if not children or (has_parameters and type(module).__module__.startswith("torch.")):
        yield name, module
        return
    if has_parameters:
        yield name, module
    for child, part in children.items():
        yield from _layers(part, f"{name}.{child}" if name else child)


def _sizes(name: str, part: nn.Module) -> LayerRecord:
    is_leaf = not dict(part.named_children()) or type(part).__module__.startswith("torch.")
    parameters = dict(part.named_parameters(recurse=is_leaf))
    count = sum(p.numel() for p in parameters.values())
    return LayerRecord(name, type(part).__name__, count, {key: tuple(p.shape) for key, p in parameters.items()})


class _Tracker(TorchFunctionMode):
    """Tracks, through one forward pass, which layers every tensor comes from."""

    def __init__(self) -> None:
        super().__init__()
        #: For each layer, its position in the order of first calls.
        self.calls: dict[int, int] = {}
        #: For each layer, the shape of its first output.
        self.outputs: dict[int, tuple[int, ...]] = {}
        #: For each layer, the layers whose outputs reach it.
        self.after: dict[int, set[int]] = {}
        #: For each tensor's id, the layers that it comes from.
        self._from: dict[int, frozenset[int]] = {}
        #: Keeps tensors alive, since a new one could get the id of an old one.
        self._alive: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._mark(result, self._origin((args, kwargs)))
        return result

    def watch(self, number: int, part: nn.Module) -> list[Any]:
        """Register the hooks of one layer."""

        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.calls.setdefault(number, len(self.calls))
            self.after.setdefault(number, set()).update(self._origin((args, kwargs)) - {number})

        def after(_: nn.Module, args: Any, result: Any) -> None:
            first = next(_tensors(result), None)
            self.outputs.setdefault(number, () if first is None else tuple(first.shape))
            self._mark(result, frozenset([number]))

        if dict(part.named_children()) and not type(part).__module__.startswith("torch."):
            return []  # it only holds parameters; its layers are watched on their own
        return [part.register_forward_pre_hook(before, with_kwargs=True), part.register_forward_hook(after)]

    def _origin(self, values: Any) -> frozenset[int]:
        return frozenset[int]().union(*(self._from.get(id(t), frozenset()) for t in _tensors(values)))

    def _mark(self, values: Any, origin: frozenset[int]) -> None:
        for tensor in _tensors(values):
            self._from[id(tensor)] = origin
            self._alive.append(tensor)


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
