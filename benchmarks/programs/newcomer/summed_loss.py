"""A Poisson loss that is a sum over the batch."""

import torch
from torch import nn

import paceline

x = torch.randn(100, 3)
y = torch.poisson(x.exp().sum(1))
job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1), nn.Flatten(0)),
    (x, y),
    nn.PoissonNLLLoss(reduction="sum"),
    optimizer=lambda p: torch.optim.SGD(p, 1e-3),
    batch_size=20,
    epochs=2,
)
