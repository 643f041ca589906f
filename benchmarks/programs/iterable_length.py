"""A stream of samples that states its length."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import paceline


class Stream(IterableDataset):
    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __len__(self):
        return self.size

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.size):
            x = torch.randn(8, generator=generator)
            yield x, (x.sum() > 0).long()


job = paceline.Job(
    nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
    DataLoader(Stream(1000, 0), batch_size=40),
    nn.functional.cross_entropy,
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    test=DataLoader(Stream(300, 1), batch_size=100),
    epochs=2,
)
