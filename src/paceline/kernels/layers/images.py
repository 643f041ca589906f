"""Layers whose results are sums or maxima over a window: convolutions, forward and transposed, and poolings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from paceline.kernels.ir import Apply, Contract, Loop, MaxPool, Number, Op, Program, Ref, at
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
from paceline.training.jobs.modules import Subsampling

# Poolings: the highest, the average, and a trainable one that is shared by all maps.


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


# Images that grow: transposed convolutions, and upsampling, which repeats each number.


def recognise_transposed(part: Any, site: CallSite) -> LayerSpec:
    """What a transposed convolution is, if it has a kernel."""
    count = len(part.kernel_size)
    channels, *sizes = image_shape(site, count)
    if channels != part.in_channels:
        raise CannotFuse(f"{site.what} gets {channels} channels, and wants {part.in_channels}")
    rows = zip(sizes, part.stride, part.padding, part.dilation, part.kernel_size, part.output_padding, strict=True)
    shape = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + more for n, s, p, d, k, more in rows]
    options = {
        "kernel": part.kernel_size,
        "stride": part.stride,
        "padding": part.padding,
        "dilation": part.dilation,
        "groups": part.groups,
        "more": part.output_padding,
    }
    return "transposed_convolution", (part.out_channels, *shape), options, weights_of(part, "weight", "bias")


def lower_transposed(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """One contraction that adds to overlapping places of a larger image, whose margin is left out."""
    flat, options = len(layer.shape) == 2, layer.options
    (ky, kx), (sy, sx), (dy, dx), (py, px), (my, mx) = (
        ((neutral, *options[word]) if flat else options[word])
        for word, neutral in (("kernel", 1), ("stride", 1), ("dilation", 1), ("padding", 0), ("more", 0))
    )
    channels, *sizes = program.shape(sources[0])
    height, width = (1, *sizes) if flat else sizes
    source = program.view(f"{layer.name}.image", sources[0], (channels, height, width))
    outputs, groups = layer.shape[0], options["groups"]
    weight = program.view(
        f"{layer.weights['weight']}.maps", layer.weights["weight"], (channels, outputs // groups, ky, kx)
    )
    tall, wide = (
        (n - 1) * s + d * (k - 1) + 1 + m for n, s, d, k, m in ((height, sy, dy, ky, my), (width, sx, dx, kx, mx))
    )
    larger = program.new(f"{layer.name}.larger", (outputs, tall, wide))
    places = loops_of("o y x", (outputs, tall, wide))
    begin = start_of(layer, "bias", "o") or Number(0.0)
    program.forward.append(Apply(places, Ref(larger, at("o", "y", "x")), begin, layer=layer.name))
    loops = loops_of("o y x i ky kx", (outputs // groups, height, width, channels // groups, ky, kx))
    o: tuple[str | int, ...] = ("o",)
    i: tuple[str | int, ...] = ("i",)
    if groups > 1:
        loops, o, i = (Loop("g", groups), *loops), ("g", outputs // groups, "o"), ("g", channels // groups, "i")
    target = Ref(larger, at(o, ("y", sy, "ky", dy), ("x", sx, "kx", dx)))
    left, right = Ref(weight, at(i, "o", "ky", "kx")), Ref(source, at(i, "y", "x"))
    program.forward.append(Contract(loops, target, left, right, add=True, layer=layer.name))
    _, *shape = layer.shape
    height, width = (1, *shape) if flat else shape
    inner = loops_of("o y x", (outputs, height, width))
    result = Ref(program.new(f"{layer.name}.inner", (outputs, height, width)), at("o", "y", "x"))
    program.forward.append(Apply(inner, result, Ref(larger, at("o", ("y", 1, py), ("x", 1, px))), layer=layer.name))
    return program.view(layer.name, result.buffer, layer.shape)


def upsampled(part: Any, site: CallSite) -> LayerSpec:
    """What an upsampling is, if it repeats each number a whole number of times."""
    shape = site.shapes[0]
    count = len(shape) - 1
    if part.mode != "nearest" or not 1 <= count <= 2 or site.axis != 0:
        raise CannotFuse(
            f"{site.what}: there is a kernel with mode='nearest', of images; nn.ConvTranspose2d learns one"
        )
    if part.size is not None:
        factors = [size / n for size, n in zip(pair(part.size, count), shape[1:], strict=True)]
    else:
        factors = list(map(float, pair(part.scale_factor, count)))
    if any(factor != int(factor) or factor < 1 for factor in factors):
        raise CannotFuse(f"{site.what}: {factors} are no whole numbers of times")
    repeats = tuple(map(int, factors))
    return "upsampling", (shape[0], *(n * f for n, f in zip(shape[1:], repeats, strict=True))), {"factors": repeats}, ()


def lower_upsampled(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A copy of each number to all places of its window."""
    shape, factors = program.shape(sources[0]), layer.options["factors"]
    names, windows = [f"q{d}" for d in range(len(shape))], [f"k{d}" for d in range(len(factors))]
    loops = (*loops_of(" ".join(names), shape), *loops_of(" ".join(windows), factors))
    index = at("q0", *((name, factor, k) for name, factor, k in zip(names[1:], factors, windows, strict=True)))
    target = Ref(program.new(layer.name, layer.shape), index)
    program.forward.append(Apply(loops, target, Ref(sources[0], at(*names)), layer=layer.name))
    return layer.name


def _padding(part: Any, kernel: Shape, dilation: Shape) -> Shape:
    """The padding in numbers."""
    if part.padding == "valid":
        return (0,) * len(kernel)
    if part.padding == "same":
        if any(d * (k - 1) % 2 for k, d in zip(kernel, dilation, strict=True)):
            raise CannotFuse(f"{part}: padding='same' with an even kernel pads one side more; pad by a number")
        return tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    return pair(part.padding, len(kernel))


def recognise_convolution(part: Any, site: CallSite) -> LayerSpec:
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


def convolution_function(args: list[Any], site: CallSite) -> LayerSpec | None:
    """F.conv1d and F.conv2d of parameters: a convolution."""
    words = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    kwargs = {**dict(zip(words, args, strict=False)), **site.given}
    weight, bias, groups = kwargs.pop("weight", None), kwargs.pop("bias", None), kwargs.pop("groups", 1)
    if (
        not all(isinstance(tensor, HeldTensor) and tensor.whole for tensor in (weight, bias) if tensor is not None)
        or weight is None
    ):
        return None
    kind = nn.Conv1d if len(weight.shape) == 3 else nn.Conv2d
    options = {word: kwargs[word] for word in ("stride", "padding", "dilation") if word in kwargs}
    outputs, inputs, *kernel = weight.shape
    part = kind(inputs * groups, outputs, tuple(kernel), groups=groups, device="meta", **options)
    name, shape, layer_options, _ = recognise_convolution(part, site)
    return name, shape, layer_options, {"weight": weight.name} | ({} if bias is None else {"bias": bias.name})


def lower_convolution(program: Program, layer: Layer, sources: list[str], number: int) -> str:
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
