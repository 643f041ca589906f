"""Blocks under torch.utils.checkpoint, a backward hook, Adafactor."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import paceline


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 12), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)
        )
        self.o = nn.Linear(12, 2)
        self.register_full_backward_hook(lambda m, gi, go: None)

    def forward(self, x):
        for b in self.b:
            x = x + checkpoint(b, x, use_reentrant=False)
        return self.o(x)


x = torch.randn(160, 12)
y = (x[:, 0] > 0).long()
job = paceline.Job(
    Deep,
    (x, y),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adafactor(p),
    batch_size=20,
    epochs=2,
    test=(x, y),
)
