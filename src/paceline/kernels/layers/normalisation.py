"""Batch-norm."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

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
from paceline.kernels.layers.base import CallSite, CannotFuse, Layer, LayerSpec, everywhere, trains, weights_of


def recognise(count: int) -> Callable[[Any, CallSite], LayerSpec]:
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


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """Mean and variance are two sums over the whole batch; all the rest is computed sample by sample.

    `BatchSum` sums over the samples of the batch and `share` is 1 / (samples x places); mean and variance are the same
    in all lanes.
    """
    source, name = sources[0], layer.name
    loops, place = everywhere(program, source)
    channels, *sizes = program.shape(source)
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
