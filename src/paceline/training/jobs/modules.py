"""Layers of the literature that PyTorch lacks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Subsampling(nn.Module):
    """Pools by one trainable kernel, 4x4 with stride 4 by default, shared by all maps."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, 1, size, size), 1 / size**2))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        batch, maps, height, width = x.shape
        size = self.weight.shape[2]
        pooled = F.conv2d(x.reshape(batch * maps, 1, height, width), self.weight, self.bias, stride=size)
        return pooled.view(batch, maps, *pooled.shape[2:])


class NarrowAttention(nn.Module):
    """Attention with some of the heads of an `nn.MultiheadAttention`, which takes as many as fill its width.

    Its parameters have the same names, and it stands in a `nn.TransformerEncoderLayer` like the one that it is made of.
    `whole` is that attention, or a narrow one that is to be narrower.
    """

    batch_first, add_zero_attn, bias_k, bias_v = True, False, None, None
    #: PyTorch's fast path for whole encoder layers does not know it.
    _qkv_same_embed_dim = False

    def __init__(self, attention: Any, heads: Tensor) -> None:
        super().__init__()
        self.embed_dim: int = attention.embed_dim
        self.head_dim: int = attention.head_dim
        self.num_heads, self.dropout = len(heads), float(attention.dropout)
        self.drop = nn.Dropout(attention.dropout)
        rows = (heads[:, None] * attention.head_dim + torch.arange(attention.head_dim)).flatten()
        weight, bias = attention.in_proj_weight.detach(), attention.in_proj_bias
        self.in_proj_weight = nn.Parameter(weight.unflatten(0, (3, -1))[:, rows].flatten(0, 1).clone())
        self.in_proj_bias = bias if bias is None else nn.Parameter(bias.detach().view(3, -1)[:, rows].flatten().clone())
        self.out_proj = nn.Linear(len(rows), attention.embed_dim, bias=attention.out_proj.bias is not None)
        self.out_proj.load_state_dict({**attention.out_proj.state_dict(), "weight": attention.out_proj.weight[:, rows]})

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        weights = self.in_proj_weight.chunk(3)
        q, k, v = (
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        scores = q @ k.transpose(-2, -1) / self.head_dim**0.5
        masks = (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None])
        for mask in [mask for mask in masks if mask is not None]:
            scores = scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        mixed = self.drop(scores.softmax(-1)) @ v
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


class Residual(nn.Module):
    """Two convolutions with batch-norm, and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))
