"""Embeddings: rows of a table by number."""

from __future__ import annotations

from torch import nn

from paceline.kernels.ir import Lookup, Loop, Program, Ref, at
from paceline.kernels.layers.base import CallSite, CannotFuse, Layer, LayerSpec


def recognise(part: nn.Embedding, site: CallSite) -> LayerSpec:
    """What an embedding is, if it has a kernel."""
    if part.max_norm is not None or part.scale_grad_by_freq or part.sparse:
        raise CannotFuse(f"{site.what}: max_norm, scale_grad_by_freq and sparse have no kernel")
    options = {"rows": part.num_embeddings, "padding": part.padding_idx}
    return "embedding", (*site.shapes[0], part.embedding_dim), options, ("weight",)


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
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
