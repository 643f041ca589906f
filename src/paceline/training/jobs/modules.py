"""Layers of the literature that PyTorch lacks, among them a layer of experts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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


# A layer of experts, of which every token takes one (Switch).
#
#     y = p_e(x) FFN_e(x)        e = argmax p(x)        p = softmax(router(x))
#
# Fedus, Zoph and Shazeer, "Switch transformers", 2021. An expert takes at most `capacity` tokens of a group of samples;
# those above it are dropped: their y is zero, so use the layer beside a skip connection. Groups (Lepikhin et al.,
# "GShard", 2020) make the routing of some samples independent of the others', so a batch can be divided between workers
# without another result.
#
#     class Block(nn.Module):
#         def __init__(self):
#             super().__init__()
#             self.router, self.experts = nn.Linear(64, 8), Experts(64, 256, experts=8)
#
#         def forward(self, x):
#             p = self.router(x).softmax(-1)
#             return x + self.experts(x, p), p                     # the loss adds 0.01 * balance_loss(p)


class Routing(NamedTuple):
    """Where the tokens that are not dropped go; one number for each of them."""

    token: Tensor
    expert: Tensor
    group: Tensor
    place: Tensor
    #: The probability of the expert that was taken.
    gate: Tensor


class Experts(nn.Module):
    """A feed-forward net for each expert. Give `forward` tokens and each token's probabilities of the experts."""

    def __init__(self, width: int, hidden: int, experts: int, groups: int = 8, capacity_factor: float = 1.25) -> None:
        super().__init__()
        self.width, self.experts, self.groups, self.capacity_factor = width, experts, groups, capacity_factor
        self.enter = nn.Parameter(torch.empty(experts, width, hidden).uniform_(-1, 1).div_(math.sqrt(width)))
        self.enter_bias = nn.Parameter(torch.zeros(experts, 1, hidden))
        self.leave = nn.Parameter(torch.empty(experts, hidden, width).uniform_(-1, 1).div_(math.sqrt(hidden)))
        self.leave_bias = nn.Parameter(torch.zeros(experts, 1, width))

    def forward(self, x: Tensor, probabilities: Tensor) -> Tensor:
        bounds = bounds_of(len(x), self.groups)
        capacity = capacity_of(tuple(probabilities.shape), self.groups, self.capacity_factor)
        routing = route(probabilities, bounds, capacity)
        slots = self.dispatch(x, routing, self.groups, capacity)
        return self.combine(self.compute(slots), routing, x)

    def dispatch(self, x: Tensor, routing: Routing, groups: int, capacity: int) -> Tensor:
        """Put tokens into the slots of their experts: (experts, groups, capacity, width)."""
        slots = x.new_zeros(self.experts, groups, capacity, self.width)
        tokens = x.reshape(-1, self.width)[routing.token]
        return slots.index_put((routing.expert, routing.group, routing.place), tokens)

    def compute(self, slots: Tensor) -> Tensor:
        """Compute what each expert makes of its slots; it may be some of the experts, with their parameters."""
        tokens = slots.flatten(1, 2)
        hidden = F.relu(torch.baddbmm(self.enter_bias, tokens, self.enter))
        return torch.baddbmm(self.leave_bias, hidden, self.leave).view(slots.shape)

    def combine(self, outputs: Tensor, routing: Routing, like: Tensor) -> Tensor:
        """Bring what experts made back to the tokens' places; dropped tokens get zeros."""
        rows = outputs.new_zeros(like.shape[:-1].numel(), self.width)
        weighted = outputs[routing.expert, routing.group, routing.place] * routing.gate.unsqueeze(-1)
        return rows.index_put((routing.token,), weighted).view(*like.shape[:-1], self.width)

    def extra_repr(self) -> str:
        return f"width={self.width}, experts={self.experts}, groups={self.groups}"


def bounds_of(samples: int, groups: int) -> tuple[int, ...]:
    """Return where groups of samples begin and end."""
    return tuple(samples * group // groups for group in range(groups + 1))


def capacity_of(shape: tuple[int, ...], groups: int, factor: float) -> int:
    """Return how many tokens of a group an expert takes, for probabilities of this shape."""
    tokens = math.ceil(shape[0] / groups) * math.prod(shape[1:-1])
    return max(1, math.ceil(factor * tokens / shape[-1]))


def route(probabilities: Tensor, bounds: tuple[int, ...], capacity: int) -> Routing:
    """Send each token to its most probable expert, in the order of tokens, while the expert has places."""
    experts = probabilities.shape[-1]
    flat = probabilities.reshape(-1, experts)
    gate, expert = flat.max(-1)
    each = len(flat) // max(1, len(probabilities))
    starts = torch.tensor(bounds) * each
    group = torch.repeat_interleave(torch.arange(len(bounds) - 1), starts.diff())
    counted = F.pad(F.one_hot(expert, experts).cumsum(0), (0, 0, 1, 0))  # tokens of each expert before each token
    token = torch.arange(len(flat))
    place = counted[token, expert] - counted[starts[group], expert]
    fits = place < capacity
    return Routing(token[fits], expert[fits], group[fits], place[fits], gate[fits])


def balance_loss(probabilities: Tensor) -> Tensor:
    """Return the paper's loss for an even load: 1 if every expert has as many tokens, more if not."""
    experts = probabilities.shape[-1]
    flat = probabilities.flatten(0, -2)
    share = F.one_hot(flat.argmax(-1), experts).to(flat.dtype).mean(0)
    return experts * (share * flat.mean(0)).sum()


def dropped(probabilities: Tensor, groups: int = 8, capacity_factor: float = 1.25) -> int:
    """Return how many tokens found no place with their expert."""
    capacity = capacity_of(tuple(probabilities.shape), groups, capacity_factor)
    routing = route(probabilities, bounds_of(len(probabilities), groups), capacity)
    return probabilities.shape[:-1].numel() - len(routing.token)
