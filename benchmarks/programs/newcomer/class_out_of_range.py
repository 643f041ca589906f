"""Labels that the model has no output for."""

import torch
from torch import nn

import paceline

x = torch.randn(100, 3)
y = torch.arange(100) % 4
job = paceline.Job(
    lambda: nn.Linear(3, 3), (x, y), nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.SGD(p, 1e-2), batch_size=20
)
