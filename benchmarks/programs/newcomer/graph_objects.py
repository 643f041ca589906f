"""Batches that are objects of a class of their own, with a method `to`."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


@dataclass
class Graph:
    x: torch.Tensor
    edge: torch.Tensor
    batch: torch.Tensor
    y: torch.Tensor
    n: int

    def to(self, d, non_blocking=False):
        return Graph(self.x.to(d), self.edge.to(d), self.batch.to(d), self.y.to(d), self.n)


class G(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = 3 + i % 6
        return torch.randn(n, 7, generator=g), torch.randint(0, n, (2, 3 * n), generator=g), i % 2


def collate(items):
    off, xs, es, bs = 0, [], [], []
    for k, (x, e, _) in enumerate(items):
        xs.append(x)
        es.append(e + off)
        bs.append(torch.full((len(x),), k))
        off += len(x)
    return Graph(torch.cat(xs), torch.cat(es, 1), torch.cat(bs), torch.tensor([y for *_, y in items]), len(items))


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(7, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, g):
        h = torch.relu(self.a(g.x))
        h = torch.zeros_like(h).index_add_(0, g.edge[1], h[g.edge[0]])
        h = torch.relu(self.b(h))
        return self.o(torch.zeros(g.n, 16).index_add_(0, g.batch, h))


def step(m, g):
    return nn.functional.cross_entropy(m(g), g.y)


job = paceline.Job(
    GCN,
    DataLoader(G(), 16, shuffle=True, collate_fn=collate),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p),
    epochs=2,
    test=DataLoader(G(), 16, collate_fn=collate),
    evaluate=lambda m, g: (m(g), g.y),
    metrics={"acc": lambda o, y: (o.argmax(1) == y).double().mean()},
)
