"""A differential equation: second derivatives by inputs, in double precision, with Rprop."""

import torch
from torch import nn

import paceline


def make():
    return nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()


def step(m, b):
    (x,) = b
    x = x.requires_grad_()
    u = m(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (d2,) = torch.autograd.grad(du.sum(), x, create_graph=True)
    return ((d2 + torch.sin(x)) ** 2).mean() + (m(torch.zeros(1, 1, dtype=torch.float64)) ** 2).mean()


job = paceline.Job(
    make,
    (torch.linspace(0, 3.14, 100, dtype=torch.float64)[:, None],),
    step=step,
    optimizer=lambda p: torch.optim.Rprop(p),
    batch_size=20,
    epochs=3,
)
