"""Norms within a sample: of its last dimensions (RMS norm takes no mean away), of groups of channels."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import nn

from paceline.kernels.ir import Apply, Contract, Expression, FunctionCall, Number, Op, Program, Ref
from paceline.kernels.layers.base import (
    CallSite,
    CannotFuse,
    HeldTensor,
    Layer,
    LayerSpec,
    everywhere,
    image_shape,
    weights_of,
)


def recognise(part: nn.LayerNorm | nn.RMSNorm, site: CallSite) -> LayerSpec:
    """What a norm is, if the samples have its dimensions."""
    normalized_shape, shape = tuple(part.normalized_shape), site.shapes[0]
    if shape[len(shape) - len(normalized_shape) :] != normalized_shape:
        raise CannotFuse(
            f"{site.what} gets samples of shape {shape}; it wants the last dimensions to be {normalized_shape}"
        )
    if site.axis and len(normalized_shape) > 1:
        raise CannotFuse(
            f"{site.what} gets batches whose samples are dimension {site.axis}; transpose them to the front"
        )
    epsilon = part.eps
    if epsilon is None:
        epsilon = torch.finfo(part.weight.dtype if part.weight is not None else torch.get_default_dtype()).eps
    options = {"epsilon": epsilon, "dimensions": len(normalized_shape), "centres": isinstance(part, nn.LayerNorm)}
    return "layer_norm", shape, options, weights_of(part, "weight", "bias")


def function(args: list[Any], site: CallSite) -> LayerSpec | None:
    """F.layer_norm and F.rms_norm of parameters."""
    centres = site.what.split()[-1] == "layer_norm"
    words = ("input", "normalized_shape", "weight", *(("bias",) if centres else ()), "eps")
    kwargs = {**dict(zip(words, args, strict=False)), **site.given}
    names = {word: kwargs[word] for word in ("weight", "bias") if kwargs.get(word) is not None}
    if not all(isinstance(held, HeldTensor) and held.whole for held in names.values()):
        return None
    dtype = names["weight"].tensor.dtype if names else torch.get_default_dtype()
    default = 1e-5 if centres else torch.finfo(dtype).eps
    kind: Any = nn.LayerNorm if centres else nn.RMSNorm
    part = kind(kwargs["normalized_shape"], eps=kwargs.get("eps") or default, elementwise_affine=False)
    name, shape, options, _ = recognise(part, site)
    return name, shape, options, {word: held.name for word, held in names.items()}


def grouped(part: nn.GroupNorm, site: CallSite) -> LayerSpec:
    """What a norm of groups of channels is."""
    return _of_channels(site, part.num_groups, part.num_channels, part.eps, weights_of(part, "weight", "bias"))


def instances(count: int) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for a norm of each channel of images of so many dimensions."""

    def row(part: Any, site: CallSite) -> LayerSpec:
        if part.track_running_stats:
            raise CannotFuse(f"{site.what}: track_running_stats=True has no kernel")
        channels = image_shape(site, count)[0]
        return _of_channels(site, channels, channels, part.eps, weights_of(part, "weight", "bias"))

    return row


def _of_channels(site: CallSite, groups: int, channels: int, epsilon: float, weights: tuple[str, ...]) -> LayerSpec:
    shape = site.shapes[0]
    if site.axis != 0 or not shape or shape[0] != channels:
        raise CannotFuse(f"{site.what} gets samples of shape {shape}; it wants {channels} channels first")
    return "layer_norm", shape, {"epsilon": epsilon, "groups": groups, "centres": True}, weights


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """Mean and variance of each run of numbers, and the numbers in units of the deviation."""
    name, code, groups = layer.name, program.forward, layer.options.get("groups", 0)
    source = sources[0]
    if groups:  # each is a row of its own
        source = program.view(f"{name}.rows", source, (groups, prod(layer.shape) // groups))
    loops, place = everywhere(program, source)
    cut = 1 if groups else len(loops) - layer.options["dimensions"]
    whole_shape = program.shape(source)
    runs, run = loops[:cut], place.index[:cut]
    shape, share = tuple(loop.extent for loop in runs), 1 / prod(loop.extent for loop in loops[cut:])

    def whole(word: str, value: Expression) -> Ref:
        target = Ref(program.new(f"{name}.{word}", whole_shape), place.index)
        code.append(Apply(loops, target, value, layer=name))
        return target

    def mean(word: str, of: Ref) -> Ref:
        total = Ref(program.new(f"{name}.{word}.total", shape), run)
        code.append(Contract(loops, total, None, of, layer=name))
        target = Ref(program.new(f"{name}.{word}", shape), run)
        code.append(Apply(runs, target, Op("*", total, Number(share)), layer=name))
        return target

    centred = whole("centred", Op("-", place, mean("mean", place))) if layer.options["centres"] else place
    variance = mean("variance", whole("square", Op("*", centred, centred)))
    scale = Ref(program.new(f"{name}.scale", shape), run)
    inside = Op("+", variance, Number(layer.options["epsilon"]))
    code.append(Apply(runs, scale, FunctionCall("reciprocal_root", inside), layer=name))
    normal = whole("normal", Op("*", centred, scale)).buffer
    normal = program.view(f"{name}.normal.shaped", normal, layer.shape) if groups else normal
    loops, place = everywhere(program, normal)
    inner = place.index[:1] if groups else place.index[cut:]
    result: Expression = place
    if "weight" in layer.weights:
        result = Op("*", result, Ref(layer.weights["weight"], inner))
    if "bias" in layer.weights:
        result = Op("+", result, Ref(layer.weights["bias"], inner))
    code.append(Apply(loops, Ref(program.new(name, layer.shape), place.index), result, layer=name))
    return name
