"""How an operation is computed on a worker's parts. What is not listed here runs as it is, on the parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from paceline.algorithms.splits import Layout, SplitNode
from paceline.algorithms.splits.ways import COMBINE, DIM, DISPATCH
from paceline.algorithms.splits.ways import COMPUTE as EXPERTS
from paceline.training.gradients.replica import reseed
from paceline.training.jobs.modules import Routing, bounds_of, route
from paceline.training.splits.slicing import window
from paceline.training.stages.tracing import Traced


@dataclass(frozen=True)
class Operation:
    """One operation of a program, at one worker."""

    traced: Traced
    piece: fx.Node
    node: SplitNode
    layout: Layout
    way: str
    place: int

    @property
    def module(self) -> Any:
        return self.traced.module.get_submodule(str(self.piece.target))

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Compute the operation, in the way of its split."""
        compute = COMPUTE.get((self.node.kind, self.way))
        if compute is not None and (self.way or self.layout.gives.is_split or self.node.kind == "dropout"):
            return compute(self, args, kwargs)
        return self.traced.call_piece(self.piece, args, kwargs)


class _AddedOnce(torch.autograd.Function):
    """Adds a bias to the summand of one worker. Every worker gets its gradient, as that of the sum is whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, dim: int, adds: bool) -> Tensor:
        ctx.dim, ctx.dims = dim, x.dim()
        shape = [-1 if each == dim else 1 for each in range(x.dim())]
        return x + bias.view(shape) if adds else x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (g,) = gradients
        others = [each for each in range(ctx.dims) if each != ctx.dim]
        return g, g.sum(others) if others else g, None, None  # torch sums over all dimensions where none is given


def added_once(summand: Tensor, bias: Tensor, dim: int, place: int) -> Tensor:
    """Add a bias along a dimension to the summand of the first worker."""
    summed: Tensor = _AddedOnce.apply(summand, bias, dim, place == 0)  # type: ignore[no-untyped-call]
    return summed


def _rows(op: Operation, args: Any, kwargs: Any) -> Tensor:
    module, (x,) = op.module, args
    if op.node.kind == "linear":
        output, dim = F.linear(x, module.weight), x.dim() - 1
    else:
        output, dim = module._conv_forward(x, module.weight, None), 1
    if module.bias is None:
        return output
    return added_once(output, module.bias, dim, op.place)


def _words(op: Operation, args: Any, kwargs: Any) -> Tensor:
    """Look up the words that this worker holds; all others are zero."""
    module, (words,) = op.module, args
    (first, stop) = op.layout.uses["weight"].cuts[0].part(op.place)
    in_range = (words >= first) & (words < stop)
    padding = module.padding_idx
    local = padding - first if padding is not None and first <= padding < stop else None
    embedded = F.embedding((words - first).clamp(0, stop - first - 1), module.weight, local)
    masked: Tensor = embedded * in_range.unsqueeze(-1).to(embedded.dtype)
    return masked


def _dropout(op: Operation, args: Any, kwargs: Any) -> Tensor:
    """Draw for the whole value, as one worker would, and keep what falls on this worker's part."""
    module, (x,) = op.module, args
    if not module.training:
        still: Tensor = x
        return still
    reseed(module, (x,))
    shape, order = op.node.shape, op.node.numbers("drawn")
    assert shape is not None
    ones = torch.ones([shape[dim] for dim in order], dtype=x.dtype)
    mask = F.dropout(ones, module.p, True).permute([order.index(dim) for dim in range(len(shape))])
    output: Tensor = x * window(mask, op.layout.gives.box(shape, op.place))
    return output


def _heads(op: Operation, args: Any, kwargs: Any) -> tuple[Tensor, None]:
    """Attend by this worker's heads, and give its summand of the output."""
    module: nn.MultiheadAttention = op.module
    reseed(module, args)
    (heads,) = op.node.numbers("heads")
    width = module.embed_dim // heads
    weights, biases = module.in_proj_weight, module.in_proj_bias  # (3, part, width), (3, part)
    batch_first = module.batch_first
    q, k, v = (
        _headed(F.linear(x, weights[n], None if biases is None else biases[n]), width, batch_first)
        for n, x in enumerate(args)
    )
    scores = (q / math.sqrt(width)) @ k.transpose(-2, -1)
    for mask in (kwargs.get("attn_mask"), _for_all_queries(kwargs.get("key_padding_mask"))):
        if mask is not None:
            scores = scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    attention = scores.softmax(-1)
    if module.training and module.dropout > 0:
        first, stop = op.layout.uses["out_proj.weight"].cuts[0].part(op.place)
        full_shape = (attention.shape[0], heads, *attention.shape[2:])
        mask = F.dropout(torch.ones(full_shape, dtype=attention.dtype), module.dropout, True)
        attention = attention * mask[:, first // width : stop // width]
    mixed = attention @ v
    order = (0, 2, 1, 3) if batch_first else (2, 0, 1, 3)
    output = F.linear(mixed.permute(order).flatten(2), module.out_proj.weight)
    if module.out_proj.bias is not None:
        output = added_once(output, module.out_proj.bias, output.dim() - 1, op.place)
    return output, None


def _for_all_queries(mask: Tensor | None) -> Tensor | None:
    """Return a mask of (batch, keys) for scores of (batch, heads, queries, keys)."""
    return None if mask is None else mask[:, None, None, :]


def _headed(x: Tensor, width: int, batch_first: bool) -> Tensor:
    """Return (batch, heads, positions, width)."""
    apart: Tensor = x.unflatten(-1, (-1, width))
    return apart.transpose(1, 2) if batch_first else apart.permute(1, 2, 0, 3)


def _block_product(op: Operation, args: Any, kwargs: Any) -> Tensor:
    """Multiply the blocks that this worker has in this step, and add what it made in the steps before."""
    (x, *before), module = args, op.module
    product: Tensor = F.linear(x, module.weight)
    if before:
        product = before[0] + product
    if module.bias is None or not any(parameter.role == "bias" for parameter in op.node.held):
        return product
    assert op.node.shape is not None
    first, stop = op.layout.gives.box(op.node.shape, op.place)[-1]
    return product.add(module.bias[first:stop])


def _strip(op: Operation, args: Any, kwargs: Any) -> Tensor:
    """Compute some rows of an image from the rows that they need; rows beyond the image are padding."""
    shape = op.node.shapes[0]
    assert shape is not None
    kernel, stride, padding, dilation = op.node.numbers("rows")
    first, stop = op.layout.gives.cuts[0].part(op.place)
    start, end = first * stride - padding, (stop - 1) * stride - padding + dilation * (kernel - 1) + 1
    inside = max(0, start), min(shape[DIM], end)
    x = args[0] if op.layout.takes[0].is_split else args[0].narrow(DIM, inside[0], inside[1] - inside[0])
    above, below = inside[0] - start, end - inside[1]
    if op.node.kind == "channelwise":
        pooled: Tensor = op.module(x)
        return pooled
    others = op.module.padding[1:]
    if above or below:
        x = F.pad(x, (*(0,) * (2 * len(others)), above, below))
    convolved: Tensor = CONVOLVE[x.dim() - 2](
        x, op.module.weight, op.module.bias, op.module.stride, (0, *others), op.module.dilation, op.module.groups
    )
    return convolved


def _pointwise_strip(op: Operation, args: Any, kwargs: Any) -> Any:
    """Compute some rows of an operation that computes every number on its own."""
    first, stop = op.layout.gives.cuts[0].part(op.place)
    takes = iter(op.layout.takes)

    def mine(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        return each if next(takes).is_split else each.narrow(DIM, first, stop - first)

    args, kwargs = tree_map(mine, (args, kwargs))
    return _dropout(op, args, kwargs) if op.node.kind == "dropout" else op.traced.call_piece(op.piece, args, kwargs)


CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _routing(op: Operation, probabilities: Tensor) -> tuple[Routing, int, int]:
    """Route this worker's samples; return how many groups they are, too, and the capacity."""
    _, groups, capacity, _ = op.node.numbers("slots")
    shape = op.node.shapes[-1]
    assert shape is not None
    slots = op.layout.gives if op.node.kind == DISPATCH else op.layout.takes[0]
    first, stop = slots.cuts[0].part(op.place)
    starts = bounds_of(shape[0], groups)[first : stop + 1]
    mine = tuple(start - starts[0] for start in starts)
    return route(probabilities, mine, capacity), stop - first, capacity


def _dispatch(op: Operation, args: Any, kwargs: Any) -> Tensor:
    x, probabilities = args
    dispatched: Tensor = op.module.dispatch(x, *_routing(op, probabilities))
    return dispatched


def _combine(op: Operation, args: Any, kwargs: Any) -> Tensor:
    outputs, probabilities = args
    combined: Tensor = op.module.combine(outputs, _routing(op, probabilities)[0], probabilities)
    return combined


def _reshape(op: Operation, args: Any, kwargs: Any) -> Tensor:
    assert op.node.shape is not None
    box = op.layout.gives.box(op.node.shape, op.place)
    reshaped: Tensor = args[0].reshape([stop - first for first, stop in box])
    return reshaped


#: By kind and way, where the operation does not run as it is on the worker's parts.
COMPUTE: dict[tuple[str, str], Callable[[Operation, Any, Any], Any]] = {
    ("linear", "rows"): _rows,
    ("convolution", "rows"): _rows,
    ("embedding", "vocabulary"): _words,
    ("attention", "heads"): _heads,
    ("dealt_blocks", "cannon"): lambda op, args, kwargs: args[0],
    ("block_product", "cannon"): _block_product,
    (DISPATCH, "experts"): _dispatch,
    (EXPERTS, "experts"): lambda op, args, kwargs: op.module.compute(*args),
    (COMBINE, "experts"): _combine,
    ("convolution", "strips"): _strip,
    ("convolution_groups", "strips"): _strip,
    ("channelwise", "strips"): _strip,
    ("elementwise", "strips"): _pointwise_strip,
    ("dropout", "strips"): _pointwise_strip,
    ("dropout", ""): _dropout,
    ("reshape", ""): _reshape,
}
