"""Layers that work number by number: activations, sums, dropout; and those that only rename numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import nn

from paceline.kernels.ir import Apply, Call, DropoutMask, Loop, Op, Program, Ref, at
from paceline.kernels.layers.base import CannotFuse, Found, Layer, Seen, Shape, everywhere, trains


def function(name: str) -> Callable[[Any, Seen], Found]:
    """A row for an activation of this name."""
    return lambda part, seen: ("activation", seen.shapes[0], {"function": name}, ())


def gelu(part: nn.GELU, seen: Seen) -> Found:
    """The exact GELU, or its approximation by tanh."""
    return "activation", seen.shapes[0], {"function": "gelu" if part.approximate == "none" else "gelu_tanh"}, ()


def same(part: nn.Module, seen: Seen) -> Found:
    """A layer that does nothing."""
    return "same", seen.shapes[0], {}, ()


def dropout(part: nn.Dropout, seen: Seen) -> Found:
    """Dropout, or nothing if its rate is 0."""
    if part.p == 0:
        return same(part, seen)
    trains(part, seen)
    return "dropout", seen.shapes[0], {"rate": part.p}, ()


def flatten(part: nn.Flatten, seen: Seen) -> Found:
    """A reshape."""
    return "reshape", flat(seen, part.start_dim, part.end_dim), {}, ()


def flat(seen: Seen, start: int, end: int) -> Shape:
    """The shape that results when dimensions `start` to `end` become one."""
    shape = seen.shapes[0]
    last = end if end >= 0 else len(shape) + 1 + end
    if start < 1:
        raise CannotFuse(f"{seen.what} mixes samples; flatten from dimension 1 on")
    return (*shape[: start - 1], prod(shape[start - 1 : last]), *shape[last:])


def unflatten(part: nn.Unflatten, seen: Seen) -> Found:
    """A reshape."""
    shape, dimension = seen.shapes[0], part.dim if part.dim >= 0 else len(seen.shapes[0]) + 1 + part.dim
    if not isinstance(dimension, int) or dimension < 1:
        raise CannotFuse(f"{seen.what}: the first dimension is the samples'")
    sizes = list(part.unflattened_size)
    if -1 in sizes:
        sizes[sizes.index(-1)] = shape[dimension - 1] // -prod(sizes)
    return "reshape", (*shape[: dimension - 1], *sizes, *shape[dimension:]), {}, ()


def step(place: Any, seen: Seen) -> Found | None:
    """One step of a sequence: x[:, -1]."""
    shape = seen.shapes[0]
    place = place[:2] if isinstance(place, tuple) and all(p == slice(None) for p in place[2:]) else place
    if not isinstance(place, tuple) or len(place) != 2 or place[0] != slice(None) or not isinstance(place[1], int):
        return None
    return "step", shape[1:], {"step": place[1] % shape[0]}, ()


def lower_activation(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A function at every place."""
    loops, place = everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), place.index)
    program.forward.append(Apply(loops, target, Call(layer.options["function"], place), layer=layer.name))
    return layer.name


def lower_add(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A sum of two branches."""
    loops, one = everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), one.index)
    both = Op("+", one, Ref(sources[1], one.index))
    program.forward.append(Apply(loops, target, both, layer=layer.name))
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
    loops, place = everywhere(program, sources[0])
    mask = program.new(f"{layer.name}.mask", layer.shape)
    program.forward.append(DropoutMask(mask, layer.options["rate"], number, layer.name))
    target = Ref(program.new(layer.name, layer.shape), place.index)
    kept = Op("*", place, Ref(mask, place.index))
    program.forward.append(Apply(loops, target, kept, layer=layer.name))
    return layer.name
