"""Layers that work number by number: activations, sums, dropout; and those that only rename numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import nn

from paceline.kernels import formulas
from paceline.kernels.ir import Apply, Loop, Number, Op, Program, Ref, at
from paceline.kernels.layers.base import (
    CallSite,
    CannotFuse,
    HeldTensor,
    Layer,
    LayerSpec,
    Shape,
    dropped,
    everywhere,
    trains,
)


def function(name: str) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for an activation of this name."""
    return lambda part, seen: ("activation", seen.shapes[0], {"function": name}, ())


def formula(name: str, *words: str) -> Callable[[Any, CallSite], LayerSpec]:
    """A row for an activation of this name, whose numbers are attributes of the module."""

    def row(part: Any, site: CallSite) -> LayerSpec:
        numbers = (getattr(part, word) for word in words)
        return "activation", site.shapes[0], {"function": formulas.named(name, *numbers)}, ()

    return row


def gelu(part: nn.GELU, site: CallSite) -> LayerSpec:
    """The exact GELU, or its approximation by tanh."""
    return "activation", site.shapes[0], {"function": "gelu" if part.approximate == "none" else "gelu_tanh"}, ()


def same(part: nn.Module, site: CallSite) -> LayerSpec:
    """A layer that does nothing."""
    return "same", site.shapes[0], {}, ()


def dropout(part: nn.Dropout, site: CallSite) -> LayerSpec:
    """Dropout, or nothing if its rate is 0."""
    if part.p == 0:
        return same(part, site)
    trains(part, site)
    return "dropout", site.shapes[0], {"rate": part.p}, ()


def dropout_of_channels(part: Any, site: CallSite) -> LayerSpec:
    """Dropout of whole channels."""
    kind, shape, options, weights = dropout(part, site)
    return kind, shape, {**options, "channels": True} if kind == "dropout" else options, weights


def no_dropout(part: Any, site: CallSite) -> LayerSpec:
    """A layer of dropout that has a kernel only where it drops nothing."""
    if part.p:
        raise CannotFuse(f"{site.what} has no kernel; nn.Dropout has")
    return same(part, site)


def flatten(part: nn.Flatten, site: CallSite) -> LayerSpec:
    """A reshape."""
    return "reshape", flat(site, part.start_dim, part.end_dim), {}, ()


def flat(site: CallSite, start_dim: int = 0, end_dim: int = -1) -> Shape:
    """The shape that results when dimensions `start_dim` to `end_dim` become one."""
    shape = site.shapes[0]
    if site.axis != 0:
        raise CannotFuse(f"{site.what} flattens numbers whose samples are not the first dimension; transpose them")
    last = end_dim if end_dim >= 0 else len(shape) + 1 + end_dim
    if start_dim < 1:
        raise CannotFuse(f"{site.what} mixes samples; flatten from dimension 1 on")
    return (*shape[: start_dim - 1], prod(shape[start_dim - 1 : last]), *shape[last:])


def operation(sign: str, args: list[Any], site: CallSite) -> LayerSpec | None:
    """A sum, difference or product of two branches of one shape, or of a branch and a number; None if it is another."""
    if site.given or len(args) != 2:
        return None
    shape, has_parameter = site.shapes[0], any(isinstance(arg, HeldTensor) for arg in args)
    number = next((arg for arg in args if isinstance(arg, int | float)), None)
    if number is not None and not has_parameter and not (sign == "/" and args[0] is number):
        first, value = args[0] is number, float(number)
        factor, shift = {
            "+": (1.0, value),
            "-": (-1.0, value) if first else (1.0, -value),
            "*": (value, 0.0),
            "/": (1 / value if value else 0.0, 0.0),
        }[sign]
        return "scale", shape, {"factor": factor, "shift": shift}, ()
    if sign == "/" or has_parameter or len(site.shapes) != 2 or shape != site.shapes[1]:
        return None
    return {"+": "add", "-": "difference", "*": "product"}[sign], shape, {}, ()


def dropout_function(site: CallSite, p: float = 0.5, training: bool = True, inplace: bool = False) -> LayerSpec:
    """F.dropout, as a module would do it."""
    return dropout(nn.Dropout(p), site) if training else same(nn.Identity(), site)


def unflatten(part: nn.Unflatten, site: CallSite) -> LayerSpec:
    """A reshape."""
    if not isinstance(part.dim, int):
        raise CannotFuse(f"{site.what}: named dimensions have no kernel")
    return unflattened(site, part.dim, part.unflattened_size)


def unflattened(site: CallSite, dim: int, sizes: Any) -> LayerSpec:
    """One dimension as several."""
    shape, d, sizes = site.shapes[0], site.dimension(dim), list(sizes)
    if any(not isinstance(n, int) for n in sizes):
        raise CannotFuse(f"{site.what} asks for a size that is not known")
    if -1 in sizes:
        sizes[sizes.index(-1)] = shape[d] // -prod(sizes)
    return (
        "reshape",
        (*shape[:d], *sizes, *shape[d + 1 :]),
        {"axis": site.axis and site.axis + (d < site.axis) * (len(sizes) - 1)},
        (),
    )


def lower_activation(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A function at every place."""
    loops, place = everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), place.index)
    program.forward.append(Apply(loops, target, formulas.applied(layer.options["function"], place), layer=layer.name))
    return layer.name


def lower_pair(sign: str) -> Callable[[Program, Layer, list[str], int], str]:
    """Two branches, number by number."""

    def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
        loops, one = everywhere(program, sources[0])
        target = Ref(program.new(layer.name, layer.shape), one.index)
        both = Op(sign, one, Ref(sources[-1], one.index))
        program.forward.append(Apply(loops, target, both, layer=layer.name))
        return layer.name

    return lower


def lower_scale(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A number times each, and a number added."""
    loops, place = everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), place.index)
    value = Op("+", Op("*", place, Number(layer.options["factor"])), Number(layer.options["shift"]))
    program.forward.append(Apply(loops, target, value, layer=layer.name))
    return layer.name


def lower_reshape(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """Another view of the same memory."""
    return program.view(layer.name, sources[0], layer.shape)


def lower_step(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A view of one step."""
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    place = at(*(loop.name for loop in loops))
    target = Ref(program.new(layer.name, layer.shape), place)
    source = Ref(sources[0], (*at(layer.options["step"]), *place))
    program.forward.append(Apply(loops, target, source, layer=layer.name))
    return layer.name


def lower_dropout(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A product with a mask that every update draws."""
    return dropped(program, layer, sources[0], layer.name, number)
