"""Attention of a sequence to itself, or to another one; softmax and log-softmax over one dimension.

Vaswani et al., "Attention Is All You Need", NeurIPS 2017:

    attention(q, k, v) = softmax(q k^T / sqrt(d)) v,    for each head, of q = x Wq + bq, and k and v likewise
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import nn

from paceline.kernels.ir import (
    FORBIDDEN,
    Apply,
    CausalMask,
    Contract,
    Expression,
    FunctionCall,
    Loop,
    Loops,
    MaxPool,
    Number,
    Op,
    Program,
    Ref,
    Softmax,
    at,
)
from paceline.kernels.layers.base import (
    CallSite,
    CannotFuse,
    HeldTensor,
    Layer,
    LayerSpec,
    Shape,
    dropped,
    loops_of,
    start_of,
    trains,
    weights_of,
)
from paceline.training.jobs.modules import NarrowAttention


def recognise(part: nn.MultiheadAttention | NarrowAttention, site: CallSite) -> LayerSpec:
    """What an attention is, if it has a kernel."""
    query, *others = site.shapes[:3]
    if site.axis != (0 if part.batch_first else 1) or any(
        len(s) != 2 or s[1] != part.embed_dim for s in (query, *others)
    ):
        raise CannotFuse(
            f"{site.what} gets samples of shape {query}, dimension {site.axis} being the samples'; it wants steps x "
            f"{part.embed_dim}, and batch_first={part.batch_first}"
        )
    if part.in_proj_weight is None or part.bias_k is not None or part.add_zero_attn:
        raise CannotFuse(f"{site.what}: kdim=, vdim=, add_bias_kv= and add_zero_attn= have no kernel")
    if part.dropout:
        trains(part, site)
    itself = len(set(site.inputs[:3])) == 1
    pairs = (query[0], others[0][0] if others else query[0])
    mask, padding = site.given.get("attn_mask"), site.given.get("key_padding_mask")
    causal = _causal(mask, pairs)
    options = {
        "heads": part.num_heads,
        "size": part.head_dim,
        "steps": pairs,
        "causal": causal,
        "rate": part.dropout,
        "inputs": (*(site.inputs[:1] if itself else site.inputs[:3]), *([padding] if isinstance(padding, str) else [])),
    }
    words = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    names = {w: f"{site.path}.{w}" for w in words if _has(part, w)}
    if mask is not None and not causal:
        if not isinstance(mask, HeldTensor) or mask.shape != pairs or not mask.whole:
            raise CannotFuse(
                f"{site.what}: a mask of {pairs[0]} x {pairs[1]} steps, the same for all samples, has a kernel"
            )
        names["mask"] = mask.name
    return "attention", query, options, names


def _causal(mask: Any, pairs: Shape) -> bool:
    """Whether a mask says that no step looks at a later one."""
    if not isinstance(mask, HeldTensor) or mask.shape != pairs or pairs[0] != pairs[1]:
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
    code, size, key_steps = program.forward, layer.options["size"], layer.options["steps"][1]
    pairs, inner = (heads, steps, key_steps), heads * size
    key, value, query = (_projected(program, layer, sources, part) for part in (1, 2, 0))
    scaled = Ref(program.new(f"{name}.scaled", (heads, steps, size)), query.index)
    code.append(
        Apply(loops_of("h t d", (heads, steps, size)), scaled, Op("*", query, Number(1 / sqrt(size))), layer=name)
    )

    products = Ref(program.new(f"{name}.products", pairs), at("h", "t", "s"))
    code.append(Contract(loops_of("h t s d", (*pairs, size)), products, key, scaled, layer=name))
    scores = _masked(program, layer, products, sources[-1] if len(sources) in (2, 4) else "")
    weighed = shares(program, name, scores, loops_of("h t s", pairs), 2, f"{name}.shares")
    if layer.options["rate"]:
        weighed = Ref(dropped(program, layer, weighed.buffer, f"{name}.kept", number), weighed.index)

    mixed = Ref(program.new(f"{name}.mixed", (steps, heads, size)), at("t", "h", "d"))
    code.append(Contract(loops_of("t h d s", (steps, heads, size, key_steps)), mixed, weighed, value, layer=name))
    joined = Ref(program.view(f"{name}.joined", mixed.buffer, (steps, inner)), at("t", "i"))
    target, weight = (
        Ref(program.new(name, layer.shape), at("t", "o")),
        Ref(layer.weights["out_proj.weight"], at("o", "i")),
    )
    loops = loops_of("t o i", (steps, width, inner))
    code.append(Contract(loops, target, weight, joined, start_of(layer, "out_proj.bias", "o"), layer=name))
    return name


def _projected(program: Program, layer: Layer, sources: list[str], part: int) -> Ref:
    """Query, key or value by head."""
    name, heads, size, width = layer.name, layer.options["heads"], layer.options["size"], layer.shape[1]
    weight, bias = layer.weights["in_proj_weight"], layer.weights.get("in_proj_bias")
    source, step = sources[0 if len(sources) < 3 else part], "s" if part else "t"
    steps, rows = program.shape(source)[0], ("h", size, "d", 1, part * heads * size)
    target = Ref(program.new(f"{name}.{('query', 'key', 'value')[part]}", (heads, steps, size)), at("h", step, "d"))
    start = None if bias is None else Ref(bias, at(rows))
    loops, operand = loops_of(f"{step} h d i", (steps, heads, size, width)), Ref(source, at(step, "i"))
    program.forward.append(Contract(loops, target, Ref(weight, at(rows, "i")), operand, start, layer=name))
    return target


def _masked(program: Program, layer: Layer, products: Ref, padding: str) -> Ref:
    """The products, with what is added to those of steps that are not to be looked at."""
    name, pairs = layer.name, program.shape(products.buffer)
    expression: Expression = products
    if layer.options["causal"]:
        forbidden = program.new(f"{name}.causal", pairs[1:])
        program.forward.append(CausalMask(forbidden, name))
        expression = Op("+", expression, Ref(forbidden, at("t", "s")))
    if "mask" in layer.weights:
        expression = Op("+", expression, Ref(layer.weights["mask"], at("t", "s")))
    if padding:
        expression = Op("+", expression, Op("*", Ref(padding, at("s")), Number(FORBIDDEN)))
    if expression == products:
        return products
    scores = Ref(program.new(f"{name}.scores", pairs), products.index)
    program.forward.append(Apply(loops_of("h t s", pairs), scores, expression, layer=name))
    return scores


# Softmax and log-softmax over one dimension.


def recognise_softmax(kind: str, dimension: int | None, site: CallSite) -> LayerSpec:
    """A softmax or log-softmax over a dimension, or the one that PyTorch takes where none is given."""
    if dimension is None:
        dimension = 0 if len(site.shapes[0]) + (site.axis is not None) in (1, 3) else 1
    return kind, site.shapes[0], {"dimension": site.dimension(dimension)}, ()


def lower_softmax(program: Program, layer: Layer, sources: list[str], number: int) -> str:
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
