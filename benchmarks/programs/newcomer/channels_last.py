"""A residual network in channels_last that went through torch.compile."""

import torch
from torch import nn

import paceline


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(c, c, 3, 1, 1, bias=False),
            nn.GroupNorm(2, c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, 1, 1, bias=False),
            nn.GroupNorm(2, c),
        )

    def forward(self, x):
        return torch.relu(x + self.f(x))


def make():
    return torch.compile(
        nn.Sequential(nn.Conv2d(3, 8, 3), Res(8), Res(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).to(
            memory_format=torch.channels_last
        )
    )


x = torch.randn(80, 3, 12, 12).contiguous(memory_format=torch.channels_last)
y = torch.arange(80) % 5
job = paceline.Job(
    make,
    (x, y),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, 0.1, weight_decay=1e-4, foreach=True),
    batch_size=20,
    epochs=1,
)
