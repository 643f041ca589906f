"""Attention of a sequence to itself.

Vaswani et al., "Attention Is All You Need", NeurIPS 2017:

    attention(q, k, v) = softmax(q k^T / sqrt(d)) v,    for each head, of q = x Wq + bq, and k and v likewise
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from paceline.jobs.modules import NarrowAttention
from paceline.kernels.ir import (
    Apply,
    Call,
    CausalMask,
    Contract,
    Expression,
    MaxPool,
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
    dropped,
    loops_of,
    start_of,
    trains,
    weights_of,
)


def recognise(part: nn.MultiheadAttention | NarrowAttention, seen: Seen) -> Found:
    """What an attention is, if it has a kernel."""
    if not part.batch_first or len(seen.shapes[0]) != 2 or seen.shapes[0][1] != part.embed_dim:
        raise CannotFuse(
            f"{seen.what} gets samples of shape {seen.shapes[0]}; it wants steps x {part.embed_dim}, and batch_first"
        )
    if len(set(seen.inputs)) > 1:
        raise CannotFuse(f"{seen.what}: there is a kernel of a sequence that attends to itself, not to another one")
    if part.in_proj_weight is None or part.bias_k is not None or part.add_zero_attn:
        raise CannotFuse(f"{seen.what}: kdim=, vdim=, add_bias_kv= and add_zero_attn= have no kernel")
    if seen.given.get("key_padding_mask") is not None:
        raise CannotFuse(f"{seen.what}: key_padding_mask= has no kernel; sequences of one length have")
    if part.dropout:
        trains(part, seen)
    options = {
        "heads": part.num_heads,
        "size": part.head_dim,
        "causal": _causal(seen, seen.given),
        "rate": part.dropout,
    }
    words = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    return "attention", seen.shapes[0], options, tuple(w for w in words if _has(part, w))


def _has(part: nn.Module, word: str) -> bool:
    *owner, name = word.split(".")
    return bool(weights_of(part.get_submodule(".".join(owner)), name))


def _causal(seen: Seen, given: Mapping[str, Any]) -> bool:
    """Whether no step looks at a later one; of the masks, the one that says so has a kernel."""
    mask = given.get("attn_mask")
    if mask is None:
        return False
    mask = mask.tensor if isinstance(mask, Held) else mask
    steps = seen.shapes[0][0]
    later = torch.ones(steps, steps, dtype=torch.bool).triu(1)
    if isinstance(mask, Tensor) and mask.shape == later.shape:
        found = mask if mask.dtype == torch.bool else mask == -torch.inf
        if torch.equal(found, later) and (mask.dtype == torch.bool or not mask[~later].any()):
            return True
    raise CannotFuse(f"{seen.what}: of masks, the causal one for {steps} steps has a kernel, as a buffer of the module")


def lower(program: Program, layer: Layer, sources: list[str], number: int) -> str:
    """Projections of all steps, scores of all pairs of steps, their softmax, and the means that it weighs."""
    name, (steps, width), heads = layer.name, layer.shape, layer.options["heads"]
    code, pairs, size = program.forward, (heads, steps, steps), layer.options["size"]
    inner = heads * size
    projected = Ref(program.new(f"{name}.projected", (steps, 3 * inner)), at("t", "g"))
    weight, source = Ref(layer.weights["in_proj_weight"], at("g", "i")), Ref(sources[0], at("t", "i"))
    loops = loops_of("t g i", (steps, 3 * inner, width))
    code.append(Contract(loops, projected, weight, source, start_of(layer, "in_proj_bias", "g"), layer=name))
    parts = program.view(f"{name}.heads", projected.buffer, (steps, 3, heads, size))

    products = Ref(program.new(f"{name}.products", pairs), at("h", "t", "s"))
    query, key = Ref(parts, at("t", 0, "h", "d")), Ref(parts, at("s", 1, "h", "d"))
    code.append(Contract(loops_of("h t s d", (*pairs, size)), products, query, key, layer=name))
    shares = _softmax(program, layer, products, pairs)
    if layer.options["rate"]:
        shares = Ref(dropped(program, layer, shares.buffer, f"{name}.kept", number), shares.index)

    mixed = Ref(program.new(f"{name}.mixed", (steps, heads, size)), at("t", "h", "d"))
    value = Ref(parts, at("s", 2, "h", "d"))
    code.append(Contract(loops_of("t h d s", (steps, heads, size, steps)), mixed, shares, value, layer=name))
    joined = Ref(program.view(f"{name}.joined", mixed.buffer, (steps, inner)), at("t", "i"))
    target, weight = (
        Ref(program.new(name, layer.shape), at("t", "o")),
        Ref(layer.weights["out_proj.weight"], at("o", "i")),
    )
    loops = loops_of("t o i", (steps, width, inner))
    code.append(Contract(loops, target, weight, joined, start_of(layer, "out_proj.bias", "o"), layer=name))
    return name


def _softmax(program: Program, layer: Layer, products: Ref, pairs: tuple[int, int, int]) -> Ref:
    """How much each step looks at each: the scores' powers, divided by their sum."""
    name, steps, place = layer.name, pairs[-1], at("h", "t", "s")
    code, loops, rows = program.forward, loops_of("h t s", pairs), loops_of("h t", pairs[:2])
    scores = Ref(program.new(f"{name}.scores", pairs), place)
    value: Expression = Op("*", products, Number(1 / sqrt(program.shape(f"{name}.heads")[-1])))
    if layer.options["causal"]:
        forbidden = program.new(f"{name}.causal", (steps, steps))
        code.append(CausalMask(forbidden, name))
        value = Op("+", value, Ref(forbidden, at("t", "s")))
    code.append(Apply(loops, scores, value, layer=name))
    highest = Ref(program.new(f"{name}.highest", pairs[:2]), at("h", "t"))
    code.append(MaxPool(rows, loops[2:], highest, scores, name, constant=True))
    powers = Ref(program.new(f"{name}.powers", pairs), place)
    code.append(Apply(loops, powers, Call("exp", Op("-", scores, highest)), layer=name))
    total = Ref(program.new(f"{name}.total", pairs[:2]), at("h", "t"))
    code.append(Contract(loops, total, None, powers, layer=name))
    part = Ref(program.new(f"{name}.part", pairs[:2]), at("h", "t"))
    code.append(Apply(rows, part, Call("reciprocal", total), layer=name))
    shares = Ref(program.new(f"{name}.shares", pairs), place)
    code.append(Apply(loops, shares, Op("*", powers, part), layer=name))
    return shares
