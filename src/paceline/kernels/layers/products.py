"""Products of matrices, of what layers give and of parameters: x @ w, torch.matmul, F.linear, torch.bmm."""

from __future__ import annotations

from typing import Any

import torch

from paceline.kernels.ir import Contract, Loop, Program, Ref, at
from paceline.kernels.layers.base import CallSite, CannotFuse, HeldTensor, Layer, LayerSpec, Shape
from paceline.kernels.layers.combined import held_at


def linear(args: list[Any], site: CallSite) -> LayerSpec | None:
    """F.linear of parameters, in any order of their dimensions: a dense layer."""
    kwargs = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **site.given}
    weight, bias = kwargs.get("weight"), kwargs.get("bias")
    if not isinstance(weight, HeldTensor) or not (bias is None or (isinstance(bias, HeldTensor) and bias.whole)):
        return None
    *rest, size = site.shapes[0] or (0,)
    if size != weight.shape[1]:
        raise CannotFuse(f"{site.what} gets {size} features, and wants {weight.shape[1]}")
    names = {"weight": weight.name} | ({} if bias is None else {"bias": bias.name})
    return "linear", (*rest, weight.shape[0]), {"held": weight}, names


def product(args: list[Any], site: CallSite) -> LayerSpec | None:
    """A product of matrices, the dimensions before them side by side."""
    if len(args) != 2 or not all(isinstance(arg, str | HeldTensor) for arg in args):
        return None
    shapes = dict(zip(site.inputs, site.shapes, strict=True))
    one, other = (shapes[a] if isinstance(a, str) else a.shape for a in args)
    samples = all(isinstance(arg, str) for arg in args)
    if len(other) < 2 or not one or (samples and len(one) < 2) or (isinstance(args[0], HeldTensor) and len(one) < 2):
        raise CannotFuse(f"{site.what}: a product of {one} and {other} has no kernel; one of matrices has")
    if site.axis and samples:
        raise CannotFuse(
            f"{site.what} gets batches whose samples are dimension {site.axis}; transpose them to the front"
        )
    if one[-1] != other[-2]:
        raise CannotFuse(f"{site.what} multiplies {one} by {other}, which do not fit")
    rows = one[-2:-1]
    try:
        outer = tuple(torch.broadcast_shapes(one[:-2], other[:-2]))
    except RuntimeError:
        raise CannotFuse(f"{site.what} multiplies {one} by {other}, which do not fit") from None
    parameters = {str(k): arg for k, arg in enumerate(args) if isinstance(arg, HeldTensor)}
    options = {"held": parameters, "shapes": (one, other), "outer": outer}
    return "matrix_product", (*outer, *rows, other[-1]), options, {word: arg.name for word, arg in parameters.items()}


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """One contraction."""
    options, inputs = layer.options, iter(sources)
    one, other = options["shapes"]
    outer = tuple(Loop(f"b{d}", n) for d, n in enumerate(options["outer"]))
    rows = (Loop("n", one[-2]),) if len(one) > 1 else ()
    loops = (*outer, *rows, Loop("m", other[-1]), Loop("k", one[-1]))

    def factor(word: str, shape: Shape, ends: tuple[str, ...]) -> Ref:
        first = len(outer) - (len(shape) - len(ends))
        index = at(*(0 if n == 1 else f"b{first + d}" for d, n in enumerate(shape[: -len(ends)])), *ends)
        parameter = options["held"].get(word)
        return (
            Ref(next(inputs), index) if parameter is None else held_at(program, parameter, layer.weights[word], index)
        )

    factors = factor("0", one, ("n", "k") if rows else ("k",)), factor("1", other, ("k", "m"))
    ends = (*(loop.name for loop in (*outer, *rows)), "m")
    target = Ref(program.new(layer.name, layer.shape), at(*ends))
    # A parameter is the left factor, as in a dense layer.
    first, second = reversed(factors) if "1" in options["held"] else factors
    program.forward.append(Contract(loops, target, first, second, layer=layer.name))
    return layer.name
