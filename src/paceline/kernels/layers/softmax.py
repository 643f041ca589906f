"""Softmax and log-softmax over one dimension."""

from __future__ import annotations

from paceline.kernels.ir import Apply, Call, Contract, Loop, Loops, MaxPool, Op, Program, Ref, at
from paceline.kernels.layers.base import Found, Layer, Seen


def recognise(kind: str, dimension: int | None, seen: Seen) -> Found:
    """A softmax or log-softmax over a dimension, or the one that PyTorch takes where none is given."""
    if dimension is None:
        dimension = 0 if len(seen.shapes[0]) + (seen.axis is not None) in (1, 3) else 1
    return kind, seen.shapes[0], {"dimension": seen.dimension(dimension)}, ()


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """The scores' powers, divided by their sum."""
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    scores = Ref(sources[0], at(*(loop.name for loop in loops)))
    return shares(program, layer.name, scores, loops, layer.options["dimension"], layer.name).buffer


def shares(program: Program, name: str, scores: Ref, loops: Loops, along: int, result: str) -> Ref:
    """How much of the sum of all powers along one of the loops each score has; in the buffer `result`."""
    powers, total, _ = _powers(program, name, scores, loops, along)
    rows = _without(loops, along)
    part = Ref(program.new(f"{name}.part", program.shape(total.buffer)), total.index)
    program.forward.append(Apply(rows, part, Call("reciprocal", total), layer=name))
    target = Ref(program.new(result, program.shape(powers.buffer)), scores.index)
    program.forward.append(Apply(loops, target, Op("*", powers, part), layer=name))
    return target


def lower_logarithm(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """What a score is above the logarithm of the sum of all powers."""
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    scores = Ref(sources[0], at(*(loop.name for loop in loops)))
    _, total, highest = _powers(program, layer.name, scores, loops, layer.options["dimension"])
    logarithm = Ref(program.new(f"{layer.name}.logarithm", program.shape(total.buffer)), total.index)
    rows = _without(loops, layer.options["dimension"])
    program.forward.append(Apply(rows, logarithm, Op("+", Call("log", total), highest), layer=layer.name))
    target = Ref(program.new(layer.name, layer.shape), scores.index)
    program.forward.append(Apply(loops, target, Op("-", scores, logarithm), layer=layer.name))
    return layer.name


def _powers(program: Program, name: str, scores: Ref, loops: Loops, along: int) -> tuple[Ref, Ref, Ref]:
    """Powers of the scores below the highest of their row, the sum of each row, and the highest."""
    code, shape = program.forward, tuple(loop.extent for loop in loops)
    rows, run = _without(loops, along), (*scores.index[:along], *scores.index[along + 1 :])
    sizes = tuple(loop.extent for loop in rows)
    highest = Ref(program.new(f"{name}.highest", sizes), run)
    code.append(MaxPool(rows, (loops[along],), highest, scores, name, constant=True))
    powers = Ref(program.new(f"{name}.powers", shape), scores.index)
    code.append(Apply(loops, powers, Call("exp", Op("-", scores, highest)), layer=name))
    total = Ref(program.new(f"{name}.total", sizes), run)
    code.append(Contract(loops, total, None, powers, layer=name))
    return powers, total, highest


def _without(loops: Loops, along: int) -> Loops:
    return (*loops[:along], *loops[along + 1 :])
