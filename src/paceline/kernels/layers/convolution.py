"""Convolutions along one and two dimensions: one access map."""

from __future__ import annotations

from typing import Any

from torch import nn

from paceline.kernels.ir import Contract, Loop, Program, Ref, at
from paceline.kernels.layers.base import (
    CallSite,
    CannotFuse,
    HeldTensor,
    Layer,
    LayerSpec,
    Shape,
    as_images,
    image_shape,
    loops_of,
    maps,
    pair,
    start_of,
    weights_of,
    windows,
)


def _padding(part: Any, kernel: Shape, dilation: Shape) -> Shape:
    """The padding in numbers."""
    if part.padding == "valid":
        return (0,) * len(kernel)
    if part.padding == "same":
        if any(d * (k - 1) % 2 for k, d in zip(kernel, dilation, strict=True)):
            raise CannotFuse(f"{part}: padding='same' with an even kernel pads one side more; pad by a number")
        return tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    return pair(part.padding, len(kernel))


def recognise(part: Any, site: CallSite) -> LayerSpec:
    """What a convolution is, if it has a kernel."""
    count = len(part.kernel_size)
    channels, *sizes = image_shape(site, count)
    if part.padding_mode != "zeros":
        raise CannotFuse(f"{site.what}: padding_mode={part.padding_mode!r} has no kernel; zeros has")
    if min(part.weight.shape) < 1:
        raise CannotFuse(f"{site.what} has no channels: its weight is {tuple(part.weight.shape)}")
    if channels != part.in_channels:
        raise CannotFuse(f"{site.what} gets {channels} channels, and wants {part.in_channels}")
    padding = _padding(part, part.kernel_size, part.dilation)
    shape = windows(site, tuple(sizes), part.kernel_size, part.stride, padding, part.dilation)
    options = {
        "kernel": part.kernel_size,
        "stride": part.stride,
        "padding": padding,
        "dilation": part.dilation,
        "groups": part.groups,
    }
    return "convolution", (part.out_channels, *shape), options, weights_of(part, "weight", "bias")


def function(args: list[Any], site: CallSite) -> LayerSpec | None:
    """F.conv1d and F.conv2d of parameters: a convolution."""
    words = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    kwargs = {**dict(zip(words, args, strict=False)), **site.given}
    weight, bias, groups = kwargs.pop("weight", None), kwargs.pop("bias", None), kwargs.pop("groups", 1)
    if (
        not all(isinstance(held, HeldTensor) and held.whole for held in (weight, bias) if held is not None)
        or weight is None
    ):
        return None
    kind = nn.Conv1d if len(weight.shape) == 3 else nn.Conv2d
    options = {word: kwargs[word] for word in ("stride", "padding", "dilation") if word in kwargs}
    outputs, inputs, *kernel = weight.shape
    part = kind(inputs * groups, outputs, tuple(kernel), groups=groups, device="meta", **options)
    name, shape, layer_options, _ = recognise(part, site)
    return name, shape, layer_options, {"weight": weight.name} | ({} if bias is None else {"bias": bias.name})


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """One contraction, over groups if there are several."""
    source, words = as_images(program, layer, sources[0])
    groups: int = layer.options["groups"]
    (outputs, height, width), place = maps(layer)
    target = program.new(layer.name, layer.shape)
    (sy, sx), (dy, dx), (ky, kx) = words["stride"], words["dilation"], words["kernel"]
    inputs, each = program.shape(source)[0] // groups, outputs // groups
    weight = layer.weights["weight"]
    if program.shape(weight) != (outputs, inputs, ky, kx):
        weight = program.view(f"{weight}.maps", weight, (outputs, inputs, ky, kx))
    loops = loops_of("o y x i ky kx", (each, height, width, inputs, ky, kx))
    o: tuple[str | int, ...] = ("o",)
    i: tuple[str | int, ...] = ("i",)
    if groups > 1:
        loops, o, i = (Loop("g", groups), *loops), ("g", each, "o"), ("g", inputs, "i")
    program.forward.append(
        Contract(
            loops,
            Ref(target, place(o)),
            Ref(weight, at(o, "i", "ky", "kx")),
            Ref(source, at(i, ("y", sy, "ky", dy), ("x", sx, "kx", dx))),
            start_of(layer, "bias", o),
            layer=layer.name,
        )
    )
    return layer.name
