"""Categories and numbers from NumPy, an embedding for each, OneCycleLR, label smoothing."""

import numpy as np
import torch
from torch import nn

import paceline

rng = np.random.default_rng(0)
cats = np.stack([rng.integers(0, n, 500) for n in (5, 12, 3)], 1)
nums = rng.normal(size=(500, 6)).astype("float32")
y = (nums[:, 0] + cats[:, 0] > 2).astype("int64")


class Tab(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.ModuleDict({f"c{i}": nn.Embedding(n, 4) for i, n in enumerate((5, 12, 3))})
        self.bn = nn.BatchNorm1d(6)
        self.m = nn.Sequential(nn.Linear(18, 32), nn.SiLU(), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 2))

    def forward(self, cat, num):
        return self.m(torch.cat([self.e[f"c{i}"](cat[:, i]) for i in range(3)] + [self.bn(num)], 1))


job = paceline.Job(
    Tab,
    (cats, nums, y),
    nn.CrossEntropyLoss(label_smoothing=0.1),
    optimizer=lambda p: torch.optim.AdamW(p, 1e-2),
    lr_scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1e-2, total_steps=20),
    batch_size=50,
    epochs=2,
    test=(cats[:100], nums[:100], y[:100]),
)
