"""Overfitting one sample, the first thing that people try with a new model."""

import torch
from torch import nn

import paceline

x, y = torch.randn(1, 10, generator=torch.Generator().manual_seed(0)), torch.tensor([1])

job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)),
    (x, y),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    batch_size=32,
    epochs=30,
)
