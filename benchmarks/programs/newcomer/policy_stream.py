"""A policy gradient from a stream that states no length."""

import torch
from torch import nn
from torch.utils.data import IterableDataset

import paceline


class Episodes(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(3)
        for _ in range(160):
            o = torch.randn(4, generator=g)
            a = torch.randint(0, 2, (1,), generator=g)[0]
            yield {"obs": o, "act": a, "ret": (o[0] > 0).float() * (a * 2 - 1)}


def step(m, b):
    lp = m(b["obs"]).log_softmax(1).gather(1, b["act"][:, None])[:, 0]
    return -(lp * b["ret"]).mean()


job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)),
    Episodes(),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p),
    batch_size=16,
    epochs=2,
)
