"""Softmax and log-softmax over one dimension."""

from __future__ import annotations

from paceline.kernels.ir import Apply, Contract, FunctionCall, Loop, Loops, MaxPool, Op, Program, Ref, Softmax, at
from paceline.kernels.layers.base import CallSite, Layer, LayerSpec


def recognise(kind: str, dimension: int | None, site: CallSite) -> LayerSpec:
    """A softmax or log-softmax over a dimension, or the one that PyTorch takes where none is given."""
    if dimension is None:
        dimension = 0 if len(site.shapes[0]) + (site.axis is not None) in (1, 3) else 1
    return kind, site.shapes[0], {"dimension": site.dimension(dimension)}, ()


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """The scores' powers, divided by their sum."""
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    scores = Ref(sources[0], at(*(loop.name for loop in loops)))
    return shares(program, layer.name, scores, loops, layer.options["dimension"], layer.name).buffer


def shares(program: Program, name: str, scores: Ref, loops: Loops, along: int, result: str) -> Ref:
    """How much of the sum of all powers along one of the loops each score has; in the buffer `result`."""
    target = Ref(program.new(result, tuple(loop.extent for loop in loops)), scores.index)
    program.forward.append(Softmax(_without(loops, along), loops[along], target, scores, name))
    return target


def lower_logarithm(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """What a score is above the logarithm of the sum of all powers, which are taken below the highest of their row."""
    name, code, along = layer.name, program.forward, layer.options["dimension"]
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    scores = Ref(sources[0], at(*(loop.name for loop in loops)))
    rows, run = _without(loops, along), (*scores.index[:along], *scores.index[along + 1 :])
    sizes = tuple(loop.extent for loop in rows)
    highest, total, logarithm = (
        Ref(program.new(f"{name}.{word}", sizes), run) for word in ("highest", "total", "logarithm")
    )
    powers, target = (Ref(program.new(word, layer.shape), scores.index) for word in (f"{name}.powers", name))
    code.append(MaxPool(rows, (loops[along],), highest, scores, name, constant=True))
    code.append(Apply(loops, powers, FunctionCall("exp", Op("-", scores, highest)), layer=name))
    code.append(Contract(loops, total, None, powers, layer=name))
    code.append(Apply(rows, logarithm, Op("+", FunctionCall("log", total), highest), layer=name))
    code.append(Apply(loops, target, Op("-", scores, logarithm), layer=name))
    return name


def _without(loops: Loops, along: int) -> Loops:
    return (*loops[:along], *loops[along + 1 :])
