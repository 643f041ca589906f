"""Images that grow: transposed convolutions, and upsampling, which repeats each number."""

from __future__ import annotations

from typing import Any

from paceline.kernels.ir import Apply, Contract, Loop, Number, Program, Ref, at
from paceline.kernels.layers.base import (
    CallSite,
    CannotFuse,
    Layer,
    LayerSpec,
    image_shape,
    loops_of,
    pair,
    start_of,
    weights_of,
)


def recognise(part: Any, site: CallSite) -> LayerSpec:
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


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
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
        factors = [wanted / n for wanted, n in zip(pair(part.size, count), shape[1:], strict=True)]
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
