"""Products of matrices, of what layers give and of parameters: dense layers, matmul, embeddings by row number."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from paceline.kernels.ir import Contract, Lookup, Loop, Program, Ref, at
from paceline.kernels.layers.base import CallSite, CannotFuse, HeldTensor, Layer, LayerSpec, Shape, start_of, weights_of
from paceline.kernels.layers.elementwise import held_at


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


def lower_product(program: Program, layer: Layer, sources: list[str], number: int) -> str:
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


# Embeddings: rows of a table by number.


def recognise_embedding(part: nn.Embedding, site: CallSite) -> LayerSpec:
    """What an embedding is, if it has a kernel."""
    if part.max_norm is not None or part.scale_grad_by_freq or part.sparse:
        raise CannotFuse(f"{site.what}: max_norm, scale_grad_by_freq and sparse have no kernel")
    options = {"rows": part.num_embeddings, "padding": part.padding_idx}
    return "embedding", (*site.shapes[0], part.embedding_dim), options, ("weight",)


def lower_embedding(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """One lookup, by the sample's tokens or by other numbers of the input."""
    loops = tuple(Loop(f"q{d}", extent) for d, extent in enumerate(layer.shape))
    target = Ref(program.new(layer.name, layer.shape), at(*(loop.name for loop in loops)))
    rows, padding, source = layer.options["rows"], layer.options["padding"], sources[0]
    if source not in program.columns:
        raise CannotFuse(f"{layer.name}: of an embedding whose rows' numbers are computed there is no kernel")
    columns = tuple(program.columns[source].flatten().tolist())
    numbers = "" if source == "input" and program.tokens else source
    program.forward.append(Lookup(loops, target, layer.weights["weight"], rows, padding, layer.name, numbers, columns))
    return layer.name


# Dense layers, on the last dimension.


def recognise_linear(part: nn.Linear, site: CallSite) -> LayerSpec:
    """What a dense layer is, if it has a kernel."""
    *rest, size = site.shapes[0] or (0,)
    if size != part.in_features:
        raise CannotFuse(f"{site.what} gets {size} features, and wants {part.in_features}")
    if min(part.weight.shape) < 1:
        raise CannotFuse(f"{site.what} has no features: its weight is {tuple(part.weight.shape)}")
    return "linear", (*rest, part.out_features), {}, weights_of(part, "weight", "bias")


def lower_linear(program: Program, layer: Layer, sources: list[str], number: int) -> str:
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
