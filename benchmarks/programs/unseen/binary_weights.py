"""Weights of one bit with a straight-through estimator: an autograd Function of one's own."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        ctx.save_for_backward(weight)
        return torch.sign(weight)

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return gradient * (weight.abs() <= 1)


class BinaryLinear(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, Sign.apply(self.weight), self.bias) / self.in_features**0.5


job = paceline.Job(
    lambda: nn.Sequential(BinaryLinear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), BinaryLinear(64, 10)),
    (x[:1400], y[:1400]),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    test=(x[1400:], y[1400:]),
    batch_size=70,
    epochs=2,
)
