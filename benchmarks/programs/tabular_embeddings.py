"""Tabular data: embeddings of categories beside numbers; a binary target, measured by AUROC."""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline

rng = np.random.default_rng(0)
categories = rng.integers(0, [5, 12, 30], size=(1500, 3))
numbers = rng.normal(size=(1500, 4)).astype(np.float32)
score = numbers[:, 0] + (categories[:, 0] == 2) - 0.1 * (categories[:, 2] % 7)
target = (score + rng.normal(size=1500) * 0.5 > 0).astype(np.float32)


class Table(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return categories[row], numbers[row], target[row]  # NumPy, as most people have it


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 4) for size in (5, 12, 30))
        self.norm = nn.BatchNorm1d(4)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, categories, numbers):
        embedded = [table(categories[:, i]) for i, table in enumerate(self.embeddings)]
        return self.body(torch.cat([*embedded, self.norm(numbers)], dim=1)).squeeze(1)


def auroc(output, target):
    return roc_auc_score(target.cpu().numpy(), output.sigmoid().cpu().numpy())


job = paceline.Job(
    Tabular,
    DataLoader(Table(range(1200)), batch_size=64, shuffle=True),
    nn.BCEWithLogitsLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    test=DataLoader(Table(range(1200, 1500)), batch_size=256),
    metrics={"auroc": auroc},
    epochs=2,
)
