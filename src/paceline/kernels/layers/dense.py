"""Dense layers, on the last dimension."""

from __future__ import annotations

from torch import nn

from paceline.kernels.ir import Contract, Loop, Program, Ref, at
from paceline.kernels.layers.base import CallSite, CannotFuse, Layer, LayerSpec, start_of, weights_of
from paceline.kernels.layers.combined import held_at


def recognise(part: nn.Linear, site: CallSite) -> LayerSpec:
    """What a dense layer is, if it has a kernel."""
    *rest, size = site.shapes[0] or (0,)
    if size != part.in_features:
        raise CannotFuse(f"{site.what} gets {size} features, and wants {part.in_features}")
    if min(part.weight.shape) < 1:
        raise CannotFuse(f"{site.what} has no features: its weight is {tuple(part.weight.shape)}")
    return "linear", (*rest, part.out_features), {}, weights_of(part, "weight", "bias")


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """One contraction."""
    source, name = sources[0], layer.weights["weight"]
    *rest, inputs = program.shape(source)
    parameter, outputs = layer.options.get("held"), layer.shape[-1]
    weight = Ref(name, at("o", "i")) if parameter is None else held_at(program, parameter, name, at("o", "i"))
    outer = tuple(Loop(f"t{d}", extent) for d, extent in enumerate(rest))
    names = [loop.name for loop in outer]
    target = Ref(program.new(layer.name, layer.shape), at(*names, "o"))
    loops = (*outer, Loop("o", outputs), Loop("i", inputs))
    start = start_of(layer, "bias", "o")
    program.forward.append(Contract(loops, target, weight, Ref(source, at(*names, "i")), start, layer=layer.name))
    return layer.name
