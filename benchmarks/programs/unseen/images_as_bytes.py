"""Images as they lie on disk, uint8, given to a convolution without a division by 255."""

import torch
from torch import nn

import paceline

draw = torch.Generator().manual_seed(0)
x = torch.randint(0, 256, (300, 1, 12, 12), dtype=torch.uint8, generator=draw)
y = (x.float().mean((1, 2, 3)) > 127).long()

job = paceline.Job(
    lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2)),
    (x, y),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.01),
    batch_size=30,
)
