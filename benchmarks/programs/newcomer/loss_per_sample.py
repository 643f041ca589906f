"""A loss with reduction="none"."""

import torch
from torch import nn

import paceline

x = torch.randn(100, 3)
y = x.sum(1, keepdim=True)
job = paceline.Job(
    lambda: nn.Linear(3, 1),
    (x, y),
    nn.MSELoss(reduction="none"),
    optimizer=lambda p: torch.optim.SGD(p, 1e-2),
    batch_size=20,
)
