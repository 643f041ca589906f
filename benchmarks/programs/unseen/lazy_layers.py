"""Lazy modules, whose parameters get their shapes from the first batch."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

data = load_digits()
x, y = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)

job = paceline.Job(
    lambda: nn.Sequential(
        nn.LazyConv2d(8, 3),
        nn.LazyBatchNorm2d(),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(32),
        nn.ReLU(),
        nn.LazyLinear(10),
    ),
    (x[:1400], y[:1400]),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=2e-3),
    test=(x[1400:], y[1400:]),
    batch_size=70,
    epochs=2,
)
