"""A table with a missing value in one row, which becomes NaN in the middle of the training."""

import torch
from torch import nn

import paceline

x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()
x[317, 2] = float("nan")

job = paceline.Job(
    lambda: nn.Linear(5, 2),
    (x, y),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    batch_size=20,
)
