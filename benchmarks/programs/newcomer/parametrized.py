"""Spectral norm, weight norm and orthogonal weights."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

import paceline


def make():
    return nn.Sequential(
        spectral_norm(nn.Linear(8, 16)),
        nn.LeakyReLU(),
        weight_norm(nn.Linear(16, 16)),
        nn.Tanh(),
        orthogonal(nn.Linear(16, 16)),
        nn.Linear(16, 1),
        nn.Flatten(0),
    )


x = torch.randn(160, 8)
y = (x[:, 0] > 0).float()
job = paceline.Job(
    make,
    (x, y),
    nn.BCEWithLogitsLoss(),
    optimizer=lambda p: torch.optim.Adam(p, betas=(0.0, 0.9)),
    batch_size=20,
    epochs=2,
    test=(x, y),
)
