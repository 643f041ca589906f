"""Norms: within a sample, of its last dimensions or of groups of channels; and of a channel over the batch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import nn

from paceline.kernels.ir import (
    Apply,
    BatchSum,
    Contract,
    Expression,
    FunctionCall,
    Number,
    Op,
    Program,
    Ref,
    RunningStatistic,
    at,
)
from paceline.kernels.layers.base import (
    CallSite,
    CannotFuse,
    HeldTensor,
    Layer,
    LayerSpec,
    everywhere,
    image_shape,
    trains,
    weights_of,
)

# Batch-norm.


def recognise_batch_norm(count: int) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for batch-norm of images of so many dimensions."""

    def row(part: Any, site: CallSite) -> LayerSpec:
        shape = site.shapes[0]
        if count and len(shape) != count + 1:
            raise CannotFuse(f"{site.what} gets samples of shape {shape}; it wants {count + 1} dimensions")
        trains(part, site)
        if part.momentum is None:
            raise CannotFuse(f"{site.what}: momentum=None (a plain average) has no kernel")
        if shape[0] != part.num_features:
            raise CannotFuse(f"{site.what} gets {shape[0]} channels, and wants {part.num_features}")
        options = {"epsilon": part.eps, "momentum": part.momentum, "tracks": part.track_running_stats}
        tracked = ("running_mean", "running_var") if part.track_running_stats else ()
        return "batch_norm", shape, options, (*weights_of(part, "weight", "bias"), *tracked)

    return row


def lower_batch_norm(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """Mean and variance are two sums over the whole batch; all the rest is computed sample by sample.

    `BatchSum` sums over the samples of the batch and `share` is 1 / (samples x places); mean and variance are the same
    in all lanes.
    """
    source, name = sources[0], layer.name
    loops, place = everywhere(program, source)
    channels, *sizes = program.shape(source)
    # Of a batch of one sample a channel has a single number, which PyTorch refuses, too.
    if prod(sizes) == 1:
        program.batch_norm = name
    channel, channel_index = (loops[0],), at("q0")
    steps = program.forward

    def mean(of: str, value: str) -> str:
        local = program.new(f"{name}.{of}.sum", (channels,))
        steps.append(Contract(loops, Ref(local, channel_index), None, Ref(value, place.index), layer=name))
        total = program.new(f"{name}.{of}.total", (channels,))
        steps.append(BatchSum(total, local, layer=name))
        result = program.new(f"{name}.{of}", (channels,))
        share = Op("*", Ref(total, channel_index), Op("*", Ref("share", ()), Number(1.0 / prod(sizes))))
        steps.append(Apply(channel, Ref(result, channel_index), share, layer=name))
        return result

    if "share" not in program.buffers:
        program.new("share", ())
    centre = mean("mean", source)
    # The variance is taken of centred numbers: of squares less
    # the square of the mean, rounding may leave less than zero.
    centred = Ref(program.new(f"{name}.centred", layer.shape), place.index)
    steps.append(Apply(loops, centred, Op("-", place, Ref(centre, channel_index)), layer=name))
    square = Ref(program.new(f"{name}.square", layer.shape), place.index)
    steps.append(Apply(loops, square, Op("*", centred, centred), layer=name))
    variance = mean("variance", square.buffer)
    scale = Ref(program.new(f"{name}.scale", (channels,)), channel_index)
    inside = Op("+", Ref(variance, channel_index), Number(layer.options["epsilon"]))
    steps.append(Apply(channel, scale, FunctionCall("reciprocal_root", inside), layer=name))
    normal = Ref(program.new(f"{name}.normal", layer.shape), place.index)
    steps.append(Apply(loops, normal, Op("*", centred, scale), layer=name))
    result: Expression = normal
    if "weight" in layer.weights:
        result = Op("*", result, Ref(layer.weights["weight"], channel_index))
    if "bias" in layer.weights:
        result = Op("+", result, Ref(layer.weights["bias"], channel_index))
    steps.append(Apply(loops, Ref(program.new(name, layer.shape), place.index), result, layer=name))
    if "running_mean" in layer.weights:
        momentum, places = layer.options["momentum"], prod(sizes)
        steps.append(RunningStatistic(layer.weights["running_mean"], centre, momentum, False, places, name))
        steps.append(RunningStatistic(layer.weights["running_var"], variance, momentum, True, places, name))
    return name


def recognise_layer_norm(part: nn.LayerNorm | nn.RMSNorm, site: CallSite) -> LayerSpec:
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
        # As RMSNorm of PyTorch does where eps=None.
        epsilon = torch.finfo(part.weight.dtype if part.weight is not None else torch.get_default_dtype()).eps
    options = {"epsilon": epsilon, "dimensions": len(normalized_shape), "centres": isinstance(part, nn.LayerNorm)}
    return "layer_norm", shape, options, weights_of(part, "weight", "bias")


def layer_norm_function(args: list[Any], site: CallSite) -> LayerSpec | None:
    """F.layer_norm and F.rms_norm of parameters."""
    centres = site.what.split()[-1] == "layer_norm"
    words = ("input", "normalized_shape", "weight", *(("bias",) if centres else ()), "eps")
    kwargs = {**dict(zip(words, args, strict=False)), **site.given}
    names = {word: kwargs[word] for word in ("weight", "bias") if kwargs.get(word) is not None}
    if not all(isinstance(parameter, HeldTensor) and parameter.whole for parameter in names.values()):
        return None
    dtype = names["weight"].tensor.dtype if names else torch.get_default_dtype()
    default = 1e-5 if centres else torch.finfo(dtype).eps
    kind: Any = nn.LayerNorm if centres else nn.RMSNorm
    part = kind(kwargs["normalized_shape"], eps=kwargs.get("eps") or default, elementwise_affine=False)
    name, shape, options, _ = recognise_layer_norm(part, site)
    return name, shape, options, {word: parameter.name for word, parameter in names.items()}


def grouped(part: nn.GroupNorm, site: CallSite) -> LayerSpec:
    """What a norm of groups of channels is."""
    return _of_channels(site, part.num_groups, part.num_channels, part.eps, weights_of(part, "weight", "bias"))


def instances(count: int) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for a norm of each channel of images of so many dimensions."""

    def row(part: Any, site: CallSite) -> LayerSpec:
        # Its statistics are means over the batch of what is computed sample by sample here.
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


def lower_layer_norm(program: Program, layer: Layer, sources: list[str], number: int) -> str:
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
