"""What PyTorch's own encoders compute, written without their branches on what they are given.

Their parts are layers that have a row in the table; a mask is handed on to attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from paceline.kernels.layers.base import CannotFuse


def encoder(part: nn.TransformerEncoder, src: Any, mask: Any = None, **given: Any) -> Any:
    """All layers, one upon another."""
    for layer in part.layers:
        src = layer(src, src_mask=mask, **given)
    return src if part.norm is None else part.norm(src)


def encoder_layer(part: nn.TransformerEncoderLayer, src: Any, src_mask: Any = None, **given: Any) -> Any:
    """Attention and two dense layers, each beside a way around it; the norms come before them, or after."""
    if any(given.get(key) is not None for key in ("src_key_padding_mask",)):
        raise CannotFuse("src_key_padding_mask= has no kernel; sequences of one length have")

    def attended(x: Any) -> Any:
        return part.dropout1(part.self_attn(x, x, x, attn_mask=src_mask, need_weights=False)[0])

    def transformed(x: Any) -> Any:
        return part.dropout2(part.linear2(part.dropout(part.activation(part.linear1(x)))))

    if part.norm_first:
        src = src + attended(part.norm1(src))
        return src + transformed(part.norm2(src))
    src = part.norm1(src + attended(src))
    return part.norm2(src + transformed(src))


FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.TransformerEncoder: encoder,
    nn.TransformerEncoderLayer: encoder_layer,
}
