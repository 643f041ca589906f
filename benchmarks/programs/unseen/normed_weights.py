"""Spectral and weight normalization by torch's parametrizations."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

import paceline

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def model():
    return nn.Sequential(
        spectral_norm(nn.Linear(64, 48)),
        nn.ReLU(),
        orthogonal(nn.Linear(48, 48)),
        nn.ReLU(),
        weight_norm(nn.Linear(48, 10)),
    )


job = paceline.Job(
    model,
    (x[:1400], y[:1400]),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.2),
    batch_size=70,
    epochs=2,
)
