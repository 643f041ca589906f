"""Strings to the model, which looks words up itself; a loader with nothing but a batch size."""

import functools
import operator

import torch
from torch import nn
from torch.utils.data import DataLoader

import paceline

texts = [("good movie really good", 1), ("bad film", 0), ("a good one", 1), ("awful bad thing", 0)] * 25


class Clf(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = {w: i for i, w in enumerate(sorted({w for t, _ in texts for w in t.split()}))}
        self.e = nn.EmbeddingBag(len(self.words), 8)
        self.o = nn.Linear(8, 2)

    def forward(self, ts):
        ids = [[self.words[w] for w in t.split()] for t in ts]
        off = torch.tensor([0] + [len(i) for i in ids[:-1]]).cumsum(0)
        return self.o(self.e(torch.tensor(functools.reduce(operator.iadd, ids, [])), off))


job = paceline.Job(
    Clf,
    DataLoader(texts, batch_size=20, shuffle=True),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, 1e-2),
    epochs=2,
    test=texts[:20],
)
