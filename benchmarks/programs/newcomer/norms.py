"""Cumulative batch norm, instance norm with statistics, Dropout2d, Adadelta."""

import torch
from torch import nn

import paceline

x = torch.randn(200, 3, 8, 8)
y = torch.arange(200) % 3
job = paceline.Job(
    lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8, momentum=None),
        nn.ReLU(),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.Dropout2d(0.1),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 3),
    ),
    (x, y),
    nn.MultiMarginLoss(),
    optimizer=lambda p: torch.optim.Adadelta(p),
    batch_size=40,
    epochs=2,
    test=(x, y),
)
