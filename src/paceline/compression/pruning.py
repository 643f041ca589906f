"""Structured pruning: whole neurons, channels and heads leave the model, which stays an ordinary module.

A layer can be narrowed if all that its channels reach are dense layers and convolutions, through steps that keep
channels apart. What reaches a residual addition or the result keeps its width. Attention can always do with fewer
heads, since its last layer adds them up. Channels are ranked by what they contribute: the deviation of a channel's
numbers on training data, times the norm of the weights that read it; heads likewise, by their values.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from paceline.compression.reading import is_over_pixels
from paceline.kernels.layers.base import Graph, Layer
from paceline.training.jobs.modules import NarrowAttention

READERS = ("linear", "convolution")
#: Layers that treat each channel separately.
PASSES = ("activation", "scale", "dropout", "batch_norm", "average_pooling", "highest_pooling", "subsampling")
#: Those that a sequence's steps go through, and that leave one row of numbers of them.
PASSES_STEPS, ENDS_STEPS = ("activation", "scale", "dropout"), ("mean", "step")
LEAST = 2  # channels


@dataclass(frozen=True)
class ChannelReader:
    """A layer that reads the channels, and how many of its columns belong to each channel."""

    module: str
    spread: int


@dataclass
class Prunable:
    """A layer whose channels may leave, with all that depends on them."""

    module: str
    #: Or heads.
    channels: int
    norms: list[str] = field(default_factory=list)
    readers: list[ChannelReader] = field(default_factory=list)


def prunable(graph: Graph) -> list[Prunable]:
    """Return the layers that can be narrowed, in order."""
    return [candidate for layer in graph.layers if (candidate := _prunable(graph, layer)) is not None]


def _prunable(graph: Graph, layer: Layer) -> Prunable | None:
    if layer.kind == "attention" and not _shared(graph, layer):
        heads: int = layer.options["heads"]
        return Prunable(_module(layer), heads) if heads > 1 else None
    if layer.kind not in READERS or layer.options.get("groups", 1) != 1 or _shared(graph, layer):
        return None
    steps = layer.kind == "linear" and len(layer.shape) > 1
    candidate = Prunable(_module(layer), layer.shape[-1] if steps else layer.shape[0])
    reached, shapes = [layer.name], {each.name: each.shape for each in graph.layers}
    for name in reached:
        if name == graph.result:
            return None
        for after in [each for each in graph.layers if name in each.inputs]:
            if _shared(graph, after):
                return None
            if after.kind in READERS and after.options.get("groups", 1) == 1:
                rows = after.kind == "linear" and len(shapes[name]) > 1
                if rows != steps and len(shapes[name]) > 1 and after.kind == "linear":
                    return None  # it reads along the pixels of a channel
                size = prod(shapes[name]) if after.kind == "linear" and not rows else candidate.channels
                candidate.readers.append(ChannelReader(_module(after), size // candidate.channels))
            elif steps and len(shapes[name]) > 1:
                if after.kind not in (*PASSES_STEPS, *ENDS_STEPS) or after.shape[-1] != candidate.channels:
                    return None
                reached.append(after.name)
            elif (
                after.kind in PASSES
                or (after.kind == "reshape" and len(after.shape) == 1)
                or (after.kind == "mean" and is_over_pixels(after, shapes[name]))
            ):
                reached.append(after.name)
                if after.kind == "batch_norm":
                    if shapes[name][0] != candidate.channels:  # it follows a flattened image
                        return None
                    candidate.norms.append(_module(after))
            else:
                return None
    return candidate if candidate.readers and candidate.channels > LEAST else None


def _shared(graph: Graph, layer: Layer) -> bool:
    """Whether the module of a layer is called more than once."""
    return bool(layer.weights) and sum(_module(each) == _module(layer) for each in graph.layers if each.weights) > 1


def _module(layer: Layer) -> str:
    return next(iter(layer.weights.values()), layer.name).rpartition(".")[0]


@torch.no_grad()
def narrowed(module: nn.Module, graph: Graph, width: dict[str, int], x: Tensor) -> nn.Module:
    """Return a copy of a module whose layers have so many channels; `x` are samples by which channels are ranked."""
    twin = copy.deepcopy(module)
    for each in prunable(graph):
        count = width.get(each.module, each.channels)
        layer = _layer(twin, each.module)
        if isinstance(layer, nn.MultiheadAttention | NarrowAttention):
            if count < layer.num_heads:
                indices = _head_scores(twin, layer, x).topk(count).indices.sort().values
                twin.set_submodule(each.module, NarrowAttention(layer, indices).train(layer.training))
        elif count < layer.weight.shape[0]:
            indices = _scores(twin, each, x).topk(count).indices.sort().values
            _narrow(twin, each, indices)
    return twin


def _seen(module: nn.Module, layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer of a module is given for some samples."""
    inputs: list[Tensor] = []
    was_training, fast = module.training, torch.backends.mha.get_fastpath_enabled()
    handle = layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    torch.backends.mha.set_fastpath_enabled(False)  # it goes past the layers within an encoder's
    try:
        module.eval()(x)
    finally:
        handle.remove()
        torch.backends.mha.set_fastpath_enabled(fast)
        module.train(was_training)
    return inputs[0]


def _head_scores(module: nn.Module, layer: nn.MultiheadAttention | NarrowAttention, x: Tensor) -> Tensor:
    """What each head contributes: its values' deviation, times the norm of the weights that read it."""
    inputs = _seen(module, layer, x)
    heads, size = layer.num_heads, layer.head_dim
    values = nn.functional.linear(inputs, layer.in_proj_weight.chunk(3)[2]).flatten(0, -2)
    scores: Tensor = (values.std(0) * layer.out_proj.weight.norm(dim=0)).view(heads, size).sum(1)
    return scores


def _scores(module: nn.Module, each: Prunable, x: Tensor) -> Tensor:
    """What each channel contributes to all that read it."""
    channels = _layer(module, each.module).weight.shape[0]
    total = torch.zeros(channels)
    for reader in each.readers:
        layer = _layer(module, reader.module)
        inputs = _seen(module, layer, x)
        if isinstance(layer, nn.Linear):
            numbers = _by_channel(inputs.flatten(0, -2), channels)
        else:
            numbers = inputs.transpose(0, 1).reshape(channels, -1)
        weight = layer.weight.reshape(len(layer.weight), channels, -1)
        total += numbers.std(1) * weight.norm(dim=(0, 2))
    return total


def _layer(module: nn.Module, name: str) -> Any:
    """A dense layer, a convolution or a batch-norm of a module, by its name."""
    return module.get_submodule(name)


def _by_channel(flat: Tensor, channels: int) -> Tensor:
    return flat.reshape(len(flat), channels, -1).transpose(0, 1).reshape(channels, -1)


def _narrow(module: nn.Module, each: Prunable, indices: Tensor) -> None:
    layer = _layer(module, each.module)
    channels = layer.weight.shape[0]
    for word in ("weight", "bias"):
        _take(layer, word, indices)
    _note(layer, len(indices), "out_features", "out_channels")
    for name in each.norms:
        norm = _layer(module, name)
        for word in ("weight", "bias", "running_mean", "running_var"):
            _take(norm, word, indices)
        _note(norm, len(indices), "num_features")
    for reader in each.readers:
        after = _layer(module, reader.module)
        weight = after.weight.reshape(len(after.weight), channels, -1)[:, indices]
        shape = (len(weight), -1) if after.weight.dim() == 2 else (len(weight), len(indices), *after.weight.shape[2:])
        after.weight = nn.Parameter(weight.reshape(shape).contiguous())
        _note(after, after.weight.shape[1], "in_features", "in_channels")


def _take(layer: nn.Module, word: str, indices: Tensor) -> None:
    value = getattr(layer, word, None)
    if value is None:
        return
    selection = value[indices].clone()
    setattr(layer, word, nn.Parameter(selection) if isinstance(value, nn.Parameter) else selection)


def _note(layer: nn.Module, count: int, *words: str) -> None:
    for word in words:
        if hasattr(layer, word):
            setattr(layer, word, count)
