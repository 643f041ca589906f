"""Batches that are dataclasses and named tuples, with strings, None and lists among their fields."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Point(NamedTuple):
    x: torch.Tensor
    weight: torch.Tensor


@dataclass
class Batch:
    points: Point
    target: torch.Tensor
    names: list
    comment: str | None = None


class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 500

    def __getitem__(self, i):
        return {"x": self.x[i], "y": float(self.x[i].sum()), "name": f"row {i}", "comment": None}


def collate(rows):
    x = torch.stack([row["x"] for row in rows])
    y = torch.tensor([row["y"] for row in rows])
    return Batch(Point(x, torch.ones(len(rows))), y, [row["name"] for row in rows])


def step(model, batch):
    assert batch.comment is None
    assert batch.names[0].startswith("row")
    error = (model(batch.points.x)[:, 0] - batch.target) ** 2
    return (error * batch.points.weight).mean()


job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)),
    DataLoader(Rows(), batch_size=50, shuffle=True, collate_fn=collate),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    epochs=2,
)
