"""Windows of a memory-mapped series: ConcatDataset, Subset, workers that persist, ReduceLROnPlateau."""

import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import paceline

path = os.path.join(tempfile.gettempdir(), "paceline-series.npy")
if not os.path.exists(path):
    np.save(path, np.sin(np.arange(1000) / 9).astype("float32"))


class Win(Dataset):
    def __init__(self, lo, hi):
        self.a, self.lo, self.hi = np.load(path, mmap_mode="r"), lo, hi

    def __len__(self):
        return self.hi - self.lo - 24

    def __getitem__(self, i):
        i += self.lo
        return torch.from_numpy(self.a[i : i + 24].copy())[:, None], torch.tensor(self.a[i + 24])


class F(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.GRU(1, 16, 2, batch_first=True, dropout=0.1)
        self.o = nn.Linear(16, 1)

    def forward(self, x):
        return self.o(self.r(x)[0][:, -1])[:, 0]


train = ConcatDataset([Win(0, 200), Subset(Win(200, 500), range(0, 200, 2))])
job = paceline.Job(
    F,
    DataLoader(train, 32, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True),
    nn.MSELoss(),
    optimizer=lambda p: torch.optim.Adam(p, 3e-3),
    lr_scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    lr_scheduler_interval="epoch",
    epochs=3,
    test=Win(500, 700),
)
