"""Matrix factorization by pairs (BPR), with a BatchSampler that drops the last batch."""

import random

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import paceline


class Inter(Dataset):
    def __init__(self):
        self.pairs = [(u, (u * 7 + k) % 50) for u in range(40) for k in range(5)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        u, v = self.pairs[i]
        return u, v, random.randrange(50)


class MF(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.v, self.b = nn.Embedding(40, 8), nn.Embedding(50, 8), nn.Embedding(50, 1)

    def score(self, u, v):
        return (self.u(u) * self.v(v)).sum(-1) + self.b(v)[:, 0]

    def forward(self, u, i, j):
        return self.score(u, i) - self.score(u, j)


ds = Inter()
job = paceline.Job(
    MF,
    DataLoader(ds, batch_sampler=BatchSampler(RandomSampler(ds), 20, drop_last=True)),
    step=lambda m, b: -nn.functional.logsigmoid(m(*b)).mean(),
    optimizer=lambda p: torch.optim.Adagrad(p, lr=0.05),
    epochs=2,
)
