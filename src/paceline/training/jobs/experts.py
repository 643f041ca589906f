"""A layer of experts, of which every token takes one (Switch).

    y = p_e(x) FFN_e(x)        e = argmax p(x)        p = softmax(router(x))

Fedus, Zoph and Shazeer, "Switch transformers", 2021. An expert takes at most `capacity` tokens of a group of samples;
those above it are dropped: their y is zero, so use the layer beside a skip connection. Groups (Lepikhin et al.,
"GShard", 2020) make the routing of some samples independent of the others', so a batch can be divided between workers
without another result.

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.experts = nn.Linear(64, 8), Experts(64, 256, experts=8)

        def forward(self, x):
            p = self.router(x).softmax(-1)
            return x + self.experts(x, p), p                     # the loss adds 0.01 * balance_loss(p)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
