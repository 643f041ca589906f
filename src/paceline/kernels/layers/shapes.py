"""Functions of whole samples: means over dimensions, branches side by side, parameters that are added."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from paceline.kernels.ir import Apply, Contract, Number, Op, Program, Ref, at
from paceline.kernels.layers.base import BATCH, CannotFuse, Found, Held, Layer, Seen, everywhere


def dimension(seen: Seen, number: Any, count: int) -> int:
    """A dimension of a batch as one of its samples; that of the samples is refused."""
    if not isinstance(number, int) or not number % (count + 1) >= 1:
        raise CannotFuse(f"{seen.what} goes over dimension {number}; the first dimension is the samples'")
    return number % (count + 1) - 1


def squeezed(seen: Seen, number: Any) -> Found:
    """A view without a dimension of one number: x.squeeze(1)."""
    shape = seen.shapes[0]
    if number is None:
        raise CannotFuse(f"{seen.what}: squeeze without a dimension may take away that of the samples; give its number")
    gone = dimension(seen, number, len(shape))
    return "reshape", shape if shape[gone] != 1 else (*shape[:gone], *shape[gone + 1 :]), {}, ()


def mean(seen: Seen, dimensions: Any, keeps: bool) -> Found:
    """The mean over some dimensions: x.mean(1)."""
    shape = seen.shapes[0]
    given = dimensions if isinstance(dimensions, tuple | list) else (dimensions,)
    gone = sorted({dimension(seen, number, len(shape)) for number in given})
    left = tuple(1 if d in gone else n for d, n in enumerate(shape) if keeps or d not in gone)
    return "mean", left, {"dimensions": tuple(gone)}, ()


def lower_mean(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A sum, divided."""
    loops, place = everywhere(program, sources[0])
    gone = layer.options["dimensions"]
    left = [d for d in range(len(loops)) if d not in gone]
    shape, index = tuple(loops[d].extent for d in left), tuple(place.index[d] for d in left)
    total = Ref(program.new(f"{layer.name}.total", shape), index)
    program.forward.append(Contract(loops, total, None, place, layer=layer.name))
    target = Ref(program.new(f"{layer.name}.mean", shape), index)
    share = Number(1 / prod(loops[d].extent for d in gone))
    program.forward.append(Apply(tuple(loops[d] for d in left), target, Op("*", total, share), layer=layer.name))
    return program.view(layer.name, target.buffer, layer.shape)


def reshaped(seen: Seen, sizes: Sequence[Any]) -> Found:
    """The same numbers in another shape, sample by sample: x.view(len(x), -1)."""
    first, *rest = sizes
    known = prod(n for n in rest if n != -1)
    if any(not isinstance(n, int) for n in rest) or rest.count(-1) > 1 or (first is not BATCH and first != -1):
        raise CannotFuse(f"{seen.what} mixes samples, or asks for a size that is not known: x.view(x.size(0), ...)")
    whole = prod(seen.shapes[0])
    shape = tuple(whole // max(known, 1) if n == -1 else n for n in rest)
    if prod(shape) != whole or (first == -1 and -1 in rest):
        raise CannotFuse(f"{seen.what} makes {shape} of samples of {seen.shapes[0]}")
    return "reshape", shape, {}, ()


def turned(seen: Seen, pair: Sequence[Any] | None, order: Sequence[Any]) -> Found:
    """Dimensions in another order: `pair` is exchanged, or all come in an `order`."""
    count = len(seen.shapes[0])
    if pair is not None:
        places = list(range(count))
        one, other = (dimension(seen, number, count) for number in pair)
        places[one], places[other] = other, one
    else:
        given = order[0] if isinstance(order[0], tuple | list) else order
        if given[0] != 0:
            raise CannotFuse(f"{seen.what} moves the first dimension, which is the samples'")
        places = [dimension(seen, number, count) for number in given[1:]]
    return "turn", tuple(seen.shapes[0][p] for p in places), {"places": tuple(places)}, ()


def lower_turned(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A copy in another order."""
    loops, place = everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), tuple(place.index[p] for p in layer.options["places"]))
    program.forward.append(Apply(loops, target, place, layer=layer.name))
    return layer.name


def joined(seen: Seen, number: Any) -> Found:
    """Branches side by side along one dimension: torch.cat."""
    along = dimension(seen, number, len(seen.shapes[0]))
    first, *others = seen.shapes
    if any((*s[:along], *s[along + 1 :]) != (*first[:along], *first[along + 1 :]) for s in others):
        raise CannotFuse(f"{seen.what} joins samples of shapes {', '.join(map(str, seen.shapes))}, which do not fit")
    shape = (*first[:along], sum(s[along] for s in seen.shapes), *first[along + 1 :])
    return "cat", shape, {"dimension": along}, ()


def lower_joined(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A copy of each branch to its place."""
    program.new(layer.name, layer.shape)
    along, start = layer.options["dimension"], 0
    for source in sources:
        loops, place = everywhere(program, source)
        index = at(*((loop.name, 1, start) if d == along else loop.name for d, loop in enumerate(loops)))
        program.forward.append(Apply(loops, Ref(layer.name, index), place, layer=layer.name))
        start += program.shape(source)[along]
    return layer.name


def shifted(seen: Seen, held: Held) -> Found:
    """A parameter that is added to every sample, such as an embedding of positions."""
    shape = seen.shapes[0]
    extra = len(held.shape) - len(shape)
    sizes = (1,) * -extra + held.shape[max(extra, 0) :]
    if any(n != 1 for n in held.shape[: max(extra, 0)]) or any(
        n not in (1, m) for n, m in zip(sizes, shape, strict=True)
    ):
        raise CannotFuse(f"{seen.what} adds {held.name} of shape {held.shape} to samples of shape {shape}")
    return "shift", shape, {"shape": held.shape}, {"held": held.name}


def lower_shift(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A sum; where the parameter has one number for a dimension, all places get it."""
    loops, place = everywhere(program, sources[0])
    shape = layer.options["shape"]
    first = len(loops) - len(shape)  # the loop that the parameter's first dimension goes with
    index = at(*(0 if n == 1 else loops[first + d].name for d, n in enumerate(shape)))
    held = Ref(layer.weights["held"], (*at(*[0] * (len(program.shape(layer.weights["held"])) - len(index))), *index))
    target = Ref(program.new(layer.name, layer.shape), place.index)
    program.forward.append(Apply(loops, target, Op("+", place, held), layer=layer.name))
    return layer.name
