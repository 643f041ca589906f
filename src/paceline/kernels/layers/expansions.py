"""What modules and functions are made of, written in functions that have a row in the table, without branches.

PyTorch's own encoders, attention as a function, gates, lengths. A row is traced in place of its module or function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paceline.kernels.layers.base import CannotFuse

# --- encoders and decoders -------------------------------------------------------------------------------------------


def encoder(part: nn.TransformerEncoder, src: Any, mask: Any = None, **kwargs: Any) -> Any:
    """All layers, one upon another."""
    for layer in part.layers:
        src = layer(src, src_mask=mask, **kwargs)
    return src if part.norm is None else part.norm(src)


def encoder_layer(part: nn.TransformerEncoderLayer, src: Any, src_mask: Any = None, **kwargs: Any) -> Any:
    """Attention and two dense layers, each beside a way around it; the norms come before them, or after."""
    padding = kwargs.get("src_key_padding_mask")

    def attended(x: Any) -> Any:
        outputs = part.self_attn(x, x, x, attn_mask=src_mask, key_padding_mask=padding, need_weights=False)
        return part.dropout1(outputs[0])

    def transformed(x: Any) -> Any:
        return part.dropout2(part.linear2(part.dropout(part.activation(part.linear1(x)))))

    if part.norm_first:
        src = src + attended(part.norm1(src))
        return src + transformed(part.norm2(src))
    src = part.norm1(src + attended(src))
    return part.norm2(src + transformed(src))


def decoder(
    part: nn.TransformerDecoder, tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None, **kwargs: Any
) -> Any:
    """All layers, one upon another."""
    for layer in part.layers:
        tgt = layer(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, **kwargs)
    return tgt if part.norm is None else part.norm(tgt)


def decoder_layer(
    part: nn.TransformerDecoderLayer,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    **_: Any,
) -> Any:
    """Attention to itself, to what an encoder gives, and two dense layers; the norms come before them, or after."""

    def itself(x: Any) -> Any:
        masks = {"attn_mask": tgt_mask, "key_padding_mask": tgt_key_padding_mask}
        return part.dropout1(part.self_attn(x, x, x, need_weights=False, **masks)[0])

    def across(x: Any) -> Any:
        masks = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
        return part.dropout2(part.multihead_attn(x, memory, memory, need_weights=False, **masks)[0])

    def transformed(x: Any) -> Any:
        return part.dropout3(part.linear2(part.dropout(part.activation(part.linear1(x)))))

    for norm, block in ((part.norm1, itself), (part.norm2, across), (part.norm3, transformed)):
        tgt = tgt + block(norm(tgt)) if part.norm_first else norm(tgt + block(tgt))
    return tgt


def allowed(scores: Any, mask: Any) -> Any:
    """Scores where a mask of truth values allows them; numbers are added. The graph's reader knows which it is."""
    raise AssertionError("this function is traced, not called")


# --- gates ----------------------------------------------------------------------------------------------------------


def gated(x: Any, dim: int = -1) -> Any:
    """F.glu: one half of the numbers, as far as the other half lets them through."""
    halves = x.chunk(2, dim)
    return halves[0] * torch.sigmoid(halves[1])


# --- attention as a function ----------------------------------------------------------------------------------------


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """F.scaled_dot_product_attention."""
    if enable_gqa:
        raise CannotFuse("scaled_dot_product_attention: enable_gqa= has no kernel; repeat the heads of keys and values")
    scores = (query @ key.transpose(-2, -1)) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        earlier = torch.tril(torch.ones((query.size(-2), key.size(-2)), dtype=torch.bool))
        scores = scores.masked_fill(~earlier, -torch.inf)
    elif attn_mask is not None:
        scores = scores.tracer.create_proxy("call_function", allowed, (scores, attn_mask), {})
    shares = torch.softmax(scores, -1)
    return (F.dropout(shares, dropout_p) if dropout_p else shares) @ value


# --- sums and spreads -----------------------------------------------------------------------------------------------


def stacked(tensors: Any, dim: int = 0) -> Any:
    """torch.stack."""
    return torch.cat([x.unsqueeze(dim) for x in tensors], dim)


def normalised(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_: Any) -> Any:
    """F.normalize by Euclid's length."""
    if p != 2:
        raise CannotFuse(f"normalize(p={p}) has no kernel; p=2 has")
    return x / torch.sqrt((x * x).sum(dim, keepdim=True)).clamp(min=eps)


def length(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """The Euclidean length along a dimension: x.norm(dim=1)."""
    if p not in (2, 2.0, "fro", None):
        raise CannotFuse(f"norm(p={p}) has no kernel; p=2 has")
    return torch.sqrt((x * x).sum(dim, keepdim=keepdim))


def variance(
    x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, correction: int | None = None
) -> Any:
    """The variance along a dimension."""
    gap = x - x.mean(dim, keepdim=True)
    ddof = int(unbiased) if correction is None else correction
    count = x.size(dim) if isinstance(dim, int) else _product([x.size(d) for d in dim])
    return (gap * gap).sum(dim, keepdim=keepdim) / (count - ddof)


def _product(numbers: Any) -> Any:
    product = numbers[0]
    for number in numbers[1:]:
        product = product * number
    return product


def deviation(x: Any, *args: Any, **kwargs: Any) -> Any:
    """The standard deviation along a dimension."""
    return torch.sqrt(variance(x, *args, **kwargs))


def log_of_powers(x: Any, dim: int, keepdim: bool = False) -> Any:
    """torch.logsumexp."""
    log_sum = x.narrow(dim, 0, 1) - F.log_softmax(x, dim).narrow(dim, 0, 1)
    return log_sum if keepdim else log_sum.squeeze(dim)


#: What is traced in place of a module's own forward.
FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.TransformerEncoder: encoder,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerDecoder: decoder,
    nn.TransformerDecoderLayer: decoder_layer,
    nn.GLU: lambda part, x: gated(x, part.dim),
}

#: What is traced in place of a function.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.glu: gated,
    F.scaled_dot_product_attention: attention,
    torch.stack: stacked,
    F.normalize: normalised,
    torch.norm: length,
    "norm": length,
    torch.linalg.vector_norm: length,
    torch.linalg.norm: length,
    torch.var: variance,
    "var": variance,
    torch.std: deviation,
    "std": deviation,
    torch.logsumexp: log_of_powers,
    "logsumexp": log_of_powers,
}
