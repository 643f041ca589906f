"""Layer norm, and RMS norm, which takes no mean away: over the last dimensions of each sample."""

from __future__ import annotations

from math import prod

import torch
from torch import nn

from paceline.kernels.ir import Apply, Call, Contract, Expression, Number, Op, Program, Ref
from paceline.kernels.layers.base import CannotFuse, Found, Layer, Seen, everywhere, weights_of


def recognise(part: nn.LayerNorm | nn.RMSNorm, seen: Seen) -> Found:
    """What a norm is, if the samples have its dimensions."""
    wanted, shape = tuple(part.normalized_shape), seen.shapes[0]
    if shape[len(shape) - len(wanted) :] != wanted:
        raise CannotFuse(f"{seen.what} gets samples of shape {shape}; it wants the last dimensions to be {wanted}")
    epsilon = part.eps
    if epsilon is None:
        epsilon = torch.finfo(part.weight.dtype if part.weight is not None else torch.get_default_dtype()).eps
    options = {"epsilon": epsilon, "dimensions": len(wanted), "centres": isinstance(part, nn.LayerNorm)}
    return "layer_norm", shape, options, weights_of(part, "weight", "bias")


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """Mean and variance of each run of numbers, and the numbers in units of the deviation."""
    name, code = layer.name, program.forward
    loops, place = everywhere(program, sources[0])
    cut = len(loops) - layer.options["dimensions"]
    runs, run, inner = loops[:cut], place.index[:cut], place.index[cut:]
    shape, share = tuple(loop.extent for loop in runs), 1 / prod(loop.extent for loop in loops[cut:])

    def whole(word: str, value: Expression) -> Ref:
        target = Ref(program.new(f"{name}.{word}", layer.shape), place.index)
        code.append(Apply(loops, target, value, layer=name))
        return target

    def mean(word: str, of: Ref) -> Ref:
        total = Ref(program.new(f"{name}.{word}.total", shape), run)
        code.append(Contract(loops, total, None, of, layer=name))
        target = Ref(program.new(f"{name}.{word}", shape), run)
        code.append(Apply(runs, target, Op("*", total, Number(share)), layer=name))
        return target

    centred = whole("centred", Op("-", place, mean("mean", place))) if layer.options["centres"] else place
    variance = mean("variance", whole("square", Op("*", centred, centred)))
    scale = Ref(program.new(f"{name}.scale", shape), run)
    inside = Op("+", variance, Number(layer.options["epsilon"]))
    code.append(Apply(runs, scale, Call("reciprocal_root", inside), layer=name))
    result: Expression = whole("normal", Op("*", centred, scale))
    if "weight" in layer.weights:
        result = Op("*", result, Ref(layer.weights["weight"], inner))
    if "bias" in layer.weights:
        result = Op("+", result, Ref(layer.weights["bias"], inner))
    code.append(Apply(loops, Ref(program.new(name, layer.shape), place.index), result, layer=name))
    return name
