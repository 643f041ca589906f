"""L-BFGS of torch.optim, whose step wants a closure."""

import torch
from torch import nn

import paceline

x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))

job = paceline.Job(
    lambda: nn.Linear(5, 1),
    (x, x.sum(1, keepdim=True)),
    nn.MSELoss(),
    optimizer=torch.optim.LBFGS,
    batch_size=200,
    epochs=5,
)
