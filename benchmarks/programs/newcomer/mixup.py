"""Mixup with soft targets as augmentation, and a schedule of two parts."""

import torch
from torch import nn

import paceline


def mixup(b):
    x, y = b
    lam = torch.distributions.Beta(0.4, 0.4).sample()
    i = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[i], lam * y + (1 - lam) * y[i]


x = torch.randn(160, 3, 8, 8)
y = nn.functional.one_hot(torch.arange(160) % 4, 4).float()
job = paceline.Job(
    lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)),
    (x, y),
    nn.CrossEntropyLoss(),
    batch_transform=mixup,
    optimizer=lambda p: torch.optim.SGD(p, 0.05),
    lr_scheduler=lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3), torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)],
        [3],
    ),
    batch_size=20,
    epochs=2,
    test=(x, y),
)
