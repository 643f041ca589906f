"""Attention of a sequence to itself, or to another one.

Vaswani et al., "Attention Is All You Need", NeurIPS 2017:

    attention(q, k, v) = softmax(q k^T / sqrt(d)) v,    for each head, of q = x Wq + bq, and k and v likewise
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import nn

from paceline.jobs.modules import NarrowAttention
from paceline.kernels.ir import (
    FORBIDDEN,
    Apply,
    CausalMask,
    Contract,
    Expression,
    Number,
    Op,
    Program,
    Ref,
    at,
)
from paceline.kernels.layers.base import (
    CannotFuse,
    Found,
    Held,
    Layer,
    Seen,
    Shape,
    dropped,
    loops_of,
    start_of,
    trains,
    weights_of,
)
from paceline.kernels.layers.softmax import shares


def recognise(part: nn.MultiheadAttention | NarrowAttention, seen: Seen) -> Found:
    """What an attention is, if it has a kernel."""
    query, *others = seen.shapes[:3]
    if seen.axis != (0 if part.batch_first else 1) or any(
        len(s) != 2 or s[1] != part.embed_dim for s in (query, *others)
    ):
        raise CannotFuse(
            f"{seen.what} gets samples of shape {query}, dimension {seen.axis} being the samples'; it wants steps x "
            f"{part.embed_dim}, and batch_first={part.batch_first}"
        )
    if part.in_proj_weight is None or part.bias_k is not None or part.add_zero_attn:
        raise CannotFuse(f"{seen.what}: kdim=, vdim=, add_bias_kv= and add_zero_attn= have no kernel")
    if part.dropout:
        trains(part, seen)
    itself = len(set(seen.inputs[:3])) == 1
    pairs = (query[0], others[0][0] if others else query[0])
    mask, padding = seen.given.get("attn_mask"), seen.given.get("key_padding_mask")
    causal = _causal(mask, pairs)
    options = {
        "heads": part.num_heads, "size": part.head_dim, "steps": pairs, "causal": causal, "rate": part.dropout,
        "inputs": (*(seen.inputs[:1] if itself else seen.inputs[:3]), *([padding] if isinstance(padding, str) else [])),
    }  # fmt: skip
    words = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    names = {w: f"{seen.path}.{w}" for w in words if _has(part, w)}
    if mask is not None and not causal:
        if not isinstance(mask, Held) or mask.shape != pairs or not mask.whole:
            raise CannotFuse(
                f"{seen.what}: a mask of {pairs[0]} x {pairs[1]} steps, the same for all samples, has a kernel"
            )
        names["mask"] = mask.name
    return "attention", query, options, names


def _causal(mask: Any, pairs: Shape) -> bool:
    """Whether a mask says that no step looks at a later one."""
    if not isinstance(mask, Held) or mask.shape != pairs or pairs[0] != pairs[1]:
        return False
    later = torch.ones(pairs, dtype=torch.bool).triu(1)
    values = mask.tensor.cpu()
    return bool((values[later] <= FORBIDDEN).all() and not values[~later].any())


def _has(part: nn.Module, word: str) -> bool:
    *owner, name = word.split(".")
    return bool(weights_of(part.get_submodule(".".join(owner)), name))


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """Projections of all steps, scores of all pairs of steps, their softmax, and the means that it weighs."""
    name, (steps, width), heads = layer.name, layer.shape, layer.options["heads"]
    code, size, seen = program.forward, layer.options["size"], layer.options["steps"][1]
    pairs, inner = (heads, steps, seen), heads * size
    query, key, value = _projected(program, layer, sources)

    products = Ref(program.new(f"{name}.products", pairs), at("h", "t", "s"))
    code.append(Contract(loops_of("h t s d", (*pairs, size)), products, query, key, layer=name))
    padding = sources[-1] if len(sources) in (2, 4) else ""
    weighed = _shares(program, layer, products, pairs, padding)
    if layer.options["rate"]:
        weighed = Ref(dropped(program, layer, weighed.buffer, f"{name}.kept", number), weighed.index)

    mixed = Ref(program.new(f"{name}.mixed", (steps, heads, size)), at("t", "h", "d"))
    code.append(Contract(loops_of("t h d s", (steps, heads, size, seen)), mixed, weighed, value, layer=name))
    joined = Ref(program.view(f"{name}.joined", mixed.buffer, (steps, inner)), at("t", "i"))
    target, weight = (
        Ref(program.new(name, layer.shape), at("t", "o")),
        Ref(layer.weights["out_proj.weight"], at("o", "i")),
    )
    loops = loops_of("t o i", (steps, width, inner))
    code.append(Contract(loops, target, weight, joined, start_of(layer, "out_proj.bias", "o"), layer=name))
    return name


def _projected(program: Program, layer: Layer, sources: list[str]) -> tuple[Ref, Ref, Ref]:
    """Query, key and value by head: of one sequence all at once, of several each by its own rows of the weights."""
    name, heads, size, width = layer.name, layer.options["heads"], layer.options["size"], layer.shape[1]
    inner, itself = heads * size, len(sources) < 3
    weight, bias = layer.weights["in_proj_weight"], layer.weights.get("in_proj_bias")
    found = []
    for part, (word, index) in enumerate((("all", "t"), ("key", "s"), ("value", "s"))):
        if itself and part:
            break
        count = 3 if itself else 1
        steps, rows = program.shape(sources[part])[0], ("g", 1, part * inner)
        projected = Ref(program.new(f"{name}.{word}", (steps, count * inner)), at("t", "g"))
        start = None if bias is None else Ref(bias, at(rows))
        loops = loops_of("t g i", (steps, count * inner, width))
        source = Ref(sources[part], at("t", "i"))
        program.forward.append(Contract(loops, projected, Ref(weight, at(rows, "i")), source, start, layer=name))
        view = program.view(f"{name}.{word}.heads", projected.buffer, (steps, count, heads, size))
        found.append((view, index))
    if itself:
        view = found[0][0]
        return Ref(view, at("t", 0, "h", "d")), Ref(view, at("s", 1, "h", "d")), Ref(view, at("s", 2, "h", "d"))
    query, key, value = (Ref(view, at(index, 0, "h", "d")) for view, index in found)
    return query, key, value


def _shares(program: Program, layer: Layer, products: Ref, pairs: Shape, padding: str) -> Ref:
    """How much each step looks at each: the softmax of the products, those with later steps left out."""
    name, loops = layer.name, loops_of("h t s", pairs)
    scores = Ref(program.new(f"{name}.scores", pairs), products.index)
    value: Expression = Op("*", products, Number(1 / sqrt(layer.options["size"])))
    if layer.options["causal"]:
        forbidden = program.new(f"{name}.causal", pairs[1:])
        program.forward.append(CausalMask(forbidden, name))
        value = Op("+", value, Ref(forbidden, at("t", "s")))
    if "mask" in layer.weights:
        value = Op("+", value, Ref(layer.weights["mask"], at("t", "s")))
    if padding:
        value = Op("+", value, Op("*", Ref(padding, at("s")), Number(FORBIDDEN)))
    program.forward.append(Apply(loops, scores, value, layer=name))
    return shares(program, name, scores, loops, 2, f"{name}.shares")
