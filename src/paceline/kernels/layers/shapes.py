"""Functions of whole samples: other shapes and orders, parts of them, means over dimensions, branches side by side."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from paceline.kernels.ir import Apply, Contract, Loop, MaxPool, Number, Op, Program, Ref, at
from paceline.kernels.layers.base import BATCH, CallSite, CannotFuse, Layer, LayerSpec, everywhere


def squeezed(site: CallSite, number: Any) -> LayerSpec:
    """A view without a dimension of one number: x.squeeze(1)."""
    shape = site.shapes[0]
    if number is None:
        if site.axis != 0 or any(n == 1 for n in shape[:-1]):
            raise CannotFuse(f"{site.what}: squeeze without a dimension may take away the samples'; give its number")
        number = -1
        if not shape:
            return "same", shape, {}, ()
    dimension = site.dimension(number)
    if shape[dimension] != 1:
        return "same", shape, {}, ()
    return "reshape", (*shape[:dimension], *shape[dimension + 1 :]), {"axis": site.without({dimension})}, ()


def unsqueezed(site: CallSite, number: Any) -> LayerSpec:
    """A view with one dimension more, of one number: x.unsqueeze(1)."""
    shape, axis = site.shapes[0], site.axis
    place = number % (len(shape) + (axis is not None) + 1)
    before = axis is not None and place <= axis
    at = place if before or axis is None else place - 1
    moved = axis + 1 if axis is not None and before else axis
    return "reshape", (*shape[:at], 1, *shape[at:]), {"axis": moved}, ()


def reduced(site: CallSite, dimensions: Any, keeps: bool, average: bool) -> LayerSpec:
    """The mean or the sum over some dimensions: x.mean(1)."""
    shape = site.shapes[0]
    if dimensions is None and site.axis is None:  # of a parameter
        dimensions = tuple(range(len(shape)))
    batch_dims = dimensions if isinstance(dimensions, tuple | list) else (dimensions,)
    if dimensions is None:
        raise CannotFuse(f"{site.what} goes over all samples; give the dimensions of one: x.mean(1)")
    reduced_dims = sorted({site.dimension(number) for number in batch_dims})
    output_shape = tuple(1 if d in reduced_dims else n for d, n in enumerate(shape) if keeps or d not in reduced_dims)
    share = 1 / prod(shape[d] for d in reduced_dims) if average else 1.0
    axis = site.axis if keeps else site.without(set(reduced_dims))
    return "mean", output_shape, {"dimensions": tuple(reduced_dims), "share": share, "axis": axis}, ()


def lower_mean(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A sum, divided."""
    loops, place = everywhere(program, sources[0])
    reduced_dims = layer.options["dimensions"]
    outer_dims = [d for d in range(len(loops)) if d not in reduced_dims]
    shape, index = tuple(loops[d].extent for d in outer_dims), tuple(place.index[d] for d in outer_dims)
    total = Ref(program.new(f"{layer.name}.total", shape), index)
    program.forward.append(Contract(loops, total, None, place, layer=layer.name))
    if layer.options["share"] == 1:
        return program.view(layer.name, total.buffer, layer.shape)
    target = Ref(program.new(f"{layer.name}.mean", shape), index)
    share = Number(layer.options["share"])
    program.forward.append(Apply(tuple(loops[d] for d in outer_dims), target, Op("*", total, share), layer=layer.name))
    return program.view(layer.name, target.buffer, layer.shape)


def highest(site: CallSite, dimensions: Any, keeps: bool) -> LayerSpec:
    """The highest number along one dimension: x.max(1), x.amax(1)."""
    if not isinstance(dimensions, int):
        raise CannotFuse(f"{site.what}: there is a kernel for the highest number along one dimension: x.amax(1)")
    shape, dimension = site.shapes[0], site.dimension(dimensions)
    output_shape = (*shape[:dimension], *((1,) if keeps else ()), *shape[dimension + 1 :])
    return (
        "highest",
        output_shape,
        {"dimension": dimension, "axis": site.axis if keeps else site.without({dimension})},
        (),
    )


def lower_highest(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A maximum over a window as long as the dimension."""
    loops, place = everywhere(program, sources[0])
    dimension = layer.options["dimension"]
    rows, run = (*loops[:dimension], *loops[dimension + 1 :]), (*place.index[:dimension], *place.index[dimension + 1 :])
    target = Ref(program.new(f"{layer.name}.highest", tuple(loop.extent for loop in rows)), run)
    program.forward.append(MaxPool(rows, (loops[dimension],), target, place, layer.name))
    return program.view(layer.name, target.buffer, layer.shape)


def sliced(site: CallSite, place: Any) -> LayerSpec | None:
    """Some places of each dimension: x[:, 1:], x[:, -1], x[..., 0], x[:, None]."""
    shape, axis = site.shapes[0], site.axis
    place = list(place) if isinstance(place, tuple) else [place]
    ndim = len(shape) + (axis is not None)
    named = sum(p is not None and p is not Ellipsis for p in place)
    if Ellipsis in place:
        k = place.index(Ellipsis)
        place[k : k + 1] = [slice(None)] * (ndim - named)
    place += [slice(None)] * (ndim - sum(p is not None for p in place))
    cuts: list[tuple[int, int]] = []  # of each dimension of a sample: where it begins, how far the next place is
    sizes: list[int] = []  # of the dimensions that are left
    source_dims: list[int | None] = []  # the dimension of the source that each of the result is; None for a new one
    moved, at = axis, 0
    for p in place:
        if p is None:
            if axis is not None and at <= axis:
                moved = moved + 1 if moved is not None else None
            sizes.append(1)
            source_dims.append(None)
            continue
        if at == axis:
            if p != slice(None):
                raise CannotFuse(f"{site.what} takes some samples of a batch; kernels know one sample at a time")
            at += 1
            continue
        d = at - (axis is not None and at > axis)
        at += 1
        if isinstance(p, int):
            if not -shape[d] <= p < shape[d]:
                raise CannotFuse(f"{site.what} takes number {p} of {shape[d]}")
            cuts.append((p % shape[d], 0))
            if axis is not None and d < axis and moved is not None:
                moved -= 1
        elif isinstance(p, slice) and all(v is None or isinstance(v, int) for v in (p.start, p.stop, p.step)):
            rounds = range(*p.indices(shape[d]))
            cuts.append((rounds.start, rounds.step))
            sizes.append(len(rounds))
            source_dims.append(d)
        else:
            return None
    if tuple(source_dims) == tuple(range(len(shape))) and tuple(sizes) == shape and all(cut == (0, 1) for cut in cuts):
        return "same", shape, {}, ()
    if (
        cuts
        and cuts[0][1] == 0
        and axis == 0
        and source_dims == list(range(1, len(shape)))
        and tuple(sizes) == shape[1:]
        and all(cut == (0, 1) for cut in cuts[1:])
    ):
        return "step", shape[1:], {"step": cuts[0][0]}, ()
    return "slice", tuple(sizes), {"cuts": tuple(cuts), "kept": tuple(source_dims), "axis": moved}, ()


def lower_sliced(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A copy of these places."""
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    names = {d: f"q{k}" for k, d in enumerate(layer.options["kept"]) if d is not None}
    index = at(
        *((names[d], step, first) if d in names else first for d, (first, step) in enumerate(layer.options["cuts"]))
    )
    target = Ref(program.new(layer.name, layer.shape), at(*(loop.name for loop in loops)))
    program.forward.append(Apply(loops, target, Ref(sources[0], index), layer=layer.name))
    return layer.name


def pieces(site: CallSite, lengths: Any, number: int, count: bool) -> list[Any]:
    """The places of pieces along a dimension: x.chunk(3, -1), x.split(16, 1), x.unbind(1)."""
    shape, d = site.shapes[0], site.dimension(number)
    size, ndim = shape[d], len(shape) + (site.axis is not None)
    if lengths is None:
        cuts: list[Any] = list(range(size))
    else:
        if count:
            lengths = -(-size // lengths)
        if isinstance(lengths, int):
            lengths = [min(lengths, size - first) for first in range(0, size, lengths)]
        ends = [sum(lengths[: k + 1]) for k in range(len(lengths))]
        cuts = [slice(end - n, end) for n, end in zip(lengths, ends, strict=True)]
    return [(*[slice(None)] * (number % ndim), cut) for cut in cuts]


def reshaped(site: CallSite, sizes: Sequence[Any]) -> LayerSpec:
    """The same numbers in another shape, sample by sample: x.view(len(x), -1)."""
    if site.axis is None:
        sizes = (BATCH, *sizes)
    elif site.axis != 0:
        raise CannotFuse(
            f"{site.what} mixes samples, whose dimension is number {site.axis}; transpose them to the front"
        )
    first, *rest = sizes
    fixed_size = prod(n for n in rest if isinstance(n, int) and n != -1)
    if any(not isinstance(n, int) for n in rest) or rest.count(-1) > 1 or (first is not BATCH and first != -1):
        raise CannotFuse(f"{site.what} mixes samples, or asks for a size that is not known: x.view(x.size(0), ...)")
    numel = prod(site.shapes[0])
    shape = tuple(numel // max(fixed_size, 1) if n == -1 else n for n in rest)
    if prod(shape) != numel or (first == -1 and -1 in rest):
        raise CannotFuse(f"{site.what} makes {shape} of samples of {site.shapes[0]}")
    return "reshape", shape, {}, ()


def turned(site: CallSite, pair: Sequence[Any] | None, order: Sequence[Any]) -> LayerSpec:
    """Dimensions in another order: `pair` is exchanged, or all come in an `order`."""
    ndim = len(site.shapes[0]) + (site.axis is not None)
    if pair is not None:
        dims = list(range(ndim))
        one, other = (number % ndim for number in pair)
        dims[one], dims[other] = dims[other], dims[one]
    else:
        dimensions = order[0] if isinstance(order[0], tuple | list) else order
        dims = [number % ndim for number in dimensions]
    axis = None if site.axis is None else dims.index(site.axis)
    places = tuple(site.dimension(d) for d in dims if d != site.axis)
    if places == tuple(range(len(places))):
        return "turn", site.shapes[0], {"places": places, "axis": axis, "moves": False}, ()
    return "turn", tuple(site.shapes[0][p] for p in places), {"places": places, "axis": axis, "moves": True}, ()


def lower_turned(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A copy in another order, or nothing where only the samples' dimension is another one."""
    if not layer.options["moves"]:
        return program.view(layer.name, sources[0], layer.shape)
    loops, place = everywhere(program, sources[0])
    target = Ref(program.new(layer.name, layer.shape), tuple(place.index[p] for p in layer.options["places"]))
    program.forward.append(Apply(loops, target, place, layer=layer.name))
    return layer.name


def joined(site: CallSite, number: Any) -> LayerSpec:
    """Branches side by side along one dimension: torch.cat."""
    along = site.dimension(number)
    first, *others = site.shapes
    if any((*s[:along], *s[along + 1 :]) != (*first[:along], *first[along + 1 :]) for s in others):
        raise CannotFuse(f"{site.what} joins samples of shapes {', '.join(map(str, site.shapes))}, which do not fit")
    shape = (*first[:along], sum(s[along] for s in site.shapes), *first[along + 1 :])
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


def padded(site: CallSite, widths: Sequence[int], mode: str = "constant", value: float | None = None) -> LayerSpec:
    """A number beyond the ends of the last dimensions: F.pad(x, (1, 1)), nn.ZeroPad2d."""
    shape, ndim = list(site.shapes[0]), len(site.shapes[0]) + (site.axis is not None)
    if mode != "constant":
        raise CannotFuse(f"{site.what}: mode={mode!r} has no kernel; constant has")
    if any(not isinstance(n, int) or n < 0 for n in widths):
        raise CannotFuse(f"{site.what} pads by {tuple(widths)}; take places away by a slice: x[:, 1:]")
    before = [0] * len(shape)
    for k, (first, last) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        if first or last:
            d = site.dimension(ndim - 1 - k)
            before[d], shape[d] = first, shape[d] + first + last
    return "pad", tuple(shape), {"before": tuple(before), "value": float(value or 0)}, ()


def lower_padded(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """A copy within a buffer of the number."""
    loops, place = everywhere(program, sources[0])
    target = program.new(layer.name, layer.shape)
    if layer.options["value"]:
        around, where = everywhere(program, target)
        program.forward.append(Apply(around, where, Number(layer.options["value"]), layer=layer.name))
    index = at(*((loop.name, 1, first) for loop, first in zip(loops, layer.options["before"], strict=True)))
    program.forward.append(Apply(loops, Ref(target, index), place, layer=layer.name))
    return target


def sliced_places(layer: Layer, places: Tensor) -> Tensor:
    """The places of the numbers that a slice takes, among these places of the input."""
    for d, (first, step) in enumerate(layer.options["cuts"]):
        source_dims = layer.options["kept"]
        count = layer.shape[source_dims.index(d)] if d in source_dims else 1
        places = places.index_select(d, torch.arange(count) * step + first)
    return places.reshape(layer.shape)
