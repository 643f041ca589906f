"""A Dataset of dictionaries in which one field is a string and one is None, and no collate function."""

import torch
from torch import nn
from torch.utils.data import Dataset

import paceline


class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 300

    def __getitem__(self, i):
        return {"x": self.x[i], "y": int(self.x[i].sum() > 0), "name": f"row {i}", "comment": None}


job = paceline.Job(
    lambda: nn.Linear(6, 2),
    Rows(),
    step=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    batch_size=30,
)
