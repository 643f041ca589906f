"""Weights of 4 bits by an autograd function with a straight-through gradient."""

import torch
from torch import nn

import paceline


class Q(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        s = w.abs().max() / 7
        return (w / s).round().clamp(-8, 7) * s

    @staticmethod
    def backward(ctx, g):
        return g


class QL(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, Q.apply(self.weight), self.bias)


x = torch.randn(200, 12)
y = (x[:, :3].sum(1) > 0).long()
job = paceline.Job(
    lambda: nn.Sequential(QL(12, 24), nn.PReLU(), QL(24, 2)),
    (x, y),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, 0.1),
    batch_size=20,
    epochs=2,
    test=(x, y),
)
