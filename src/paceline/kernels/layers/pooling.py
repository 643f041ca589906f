"""Poolings: the highest, the average, and a trainable one that is shared by all maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.kernels.ir import Apply, Contract, MaxPool, Number, Op, Program, Ref, at
from paceline.kernels.layers.base import (
    CallSite,
    CannotFuse,
    Layer,
    LayerSpec,
    as_images,
    image_shape,
    loops_of,
    maps,
    pair,
    windows,
)
from paceline.training.jobs.modules import Subsampling


def fixed(kind: str, count: int) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for a pooling of windows."""

    def row(part: Any, site: CallSite) -> LayerSpec:
        channels, *sizes = image_shape(site, count)
        kernel = pair(part.kernel_size, count)
        stride, padding = pair(part.stride, count), pair(part.padding, count)
        dilation = pair(getattr(part, "dilation", 1), count)
        if part.ceil_mode or getattr(part, "return_indices", False) or getattr(part, "divisor_override", None):
            raise CannotFuse(f"{site.what}: ceil_mode, return_indices and divisor_override have no kernel")
        if kind == "average" and any(padding) and not part.count_include_pad:
            raise CannotFuse(f"{site.what}: count_include_pad=False with padding has no kernel")
        shape = windows(site, tuple(sizes), kernel, stride, padding, dilation)
        options = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
        return f"{kind}_pooling", (channels, *shape), options, ()

    return row


def adaptive(kind: str, count: int) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for a pooling of windows that are as large as the images allow."""

    def row(part: Any, site: CallSite) -> LayerSpec:
        channels, *sizes = image_shape(site, count)
        output_sizes = [o or n for o, n in zip(pair(part.output_size, count), sizes, strict=True)]
        if any(n % o for n, o in zip(sizes, output_sizes, strict=True)):
            raise CannotFuse(f"{site.what}: {sizes} cannot be cut into {output_sizes} windows of one size")
        kernel = tuple(n // o for n, o in zip(sizes, output_sizes, strict=True))
        options = {"kernel": kernel, "stride": kernel, "padding": (0,) * count, "dilation": (1,) * count}
        if getattr(part, "return_indices", False):
            raise CannotFuse(f"{site.what}: return_indices has no kernel")
        return f"{kind}_pooling", (channels, *output_sizes), options, ()

    return row


def trainable(part: Subsampling, site: CallSite) -> LayerSpec:
    """What a trainable pooling is."""
    channels, *sizes = image_shape(site, 2)
    kernel = tuple(part.weight.shape[2:])
    shape = windows(site, tuple(sizes), kernel, kernel, (0, 0), (1, 1))
    return "subsampling", (channels, *shape), {"kernel": kernel}, ("weight", "bias")


def lower_average(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A contraction without a left factor."""
    source, words = as_images(program, layer, sources[0])
    extents, place = maps(layer)
    (sy, sx), (ky, kx) = words["stride"], words["kernel"]
    total = Ref(program.new(f"{layer.name}.sum", layer.shape), place("c"))
    loops = loops_of("c y x ky kx", (*extents, ky, kx))
    window = Ref(source, at("c", ("y", sy, "ky"), ("x", sx, "kx")))
    program.forward.append(Contract(loops, total, None, window, layer=layer.name))
    share = Op("*", total, Number(1.0 / (ky * kx)))
    target = Ref(program.new(layer.name, layer.shape), place("c"))
    program.forward.append(Apply(loops[:3], target, share, layer=layer.name))
    return layer.name


def lower_highest(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A maximum over windows."""
    source, words = as_images(program, layer, sources[0])
    extents, place = maps(layer)
    (sy, sx), (dy, dx), (py, px) = words["stride"], words["dilation"], words["padding"]
    window = Ref(source, at("c", ("y", sy, "ky", dy, -py), ("x", sx, "kx", dx, -px)))
    target = Ref(program.new(layer.name, layer.shape), place("c"))
    loops = loops_of("c y x", extents)
    program.forward.append(MaxPool(loops, loops_of("ky kx", words["kernel"]), target, window, layer.name))
    return layer.name


def lower_trainable(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A contraction whose left factor all maps share."""
    (ky, kx), (channels, height, width) = layer.options["kernel"], layer.shape
    loops = loops_of("c y x ky kx", (channels, height, width, ky, kx))
    weight = program.view(f"{layer.weights['weight']}.taps", layer.weights["weight"], (ky, kx))
    place = at("c", ("y", ky, "ky"), ("x", kx, "kx"))
    target = Ref(program.new(layer.name, layer.shape), at("c", "y", "x"))
    start = Ref(layer.weights["bias"], at(0))
    program.forward.append(
        Contract(loops, target, Ref(weight, at("ky", "kx")), Ref(sources[0], place), start, layer=layer.name)
    )
    return layer.name
