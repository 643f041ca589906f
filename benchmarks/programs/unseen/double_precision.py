"""A regression in double precision, as physicists have it: model and data in float64, and a derivative in the loss."""

import torch
from torch import nn

import paceline

t = torch.linspace(0, 3, 300, dtype=torch.float64)[:, None]


def step(model, batch):
    """The residual of du/dt = -u with u(0) = 1."""
    (t,) = batch
    t = t.requires_grad_()
    u = model(t)
    (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    start = model(torch.zeros(1, 1, dtype=torch.float64))
    return ((slope + u) ** 2).mean() + (start - 1).pow(2).mean()


job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1)).double(),
    (t,),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    batch_size=60,
    epochs=6,
)
