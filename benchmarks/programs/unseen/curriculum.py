"""A stream that begins with the easy samples and lets in harder ones each epoch, told by set_epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import paceline

draw = torch.Generator().manual_seed(0)
x = torch.randn(800, 10, generator=draw)
y = (x[:, :3].sum(1) > 0).long()
ease = x[:, :3].sum(1).abs()


class Curriculum(IterableDataset):
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.epoch += 1
        kept = torch.argsort(ease, descending=True)[: 200 * min(self.epoch, 4)]
        for index in kept.tolist():
            yield x[index], y[index]


job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2)),
    DataLoader(Curriculum(), batch_size=20),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.2),
    epochs=3,
)
