"""784-64-64-10 by batches of 100, whose pass takes at least PASS milliseconds, as on a host with a free processor."""

import os
import time
from functools import partial

import torch
from torch import Tensor, nn

import paceline as pl

PASS = float(os.environ.get("PASS", "5")) / 1000


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(784, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(PASS * len(x) / 100)  # a worker with a part of a batch has a part of its work
        result: Tensor = self.body(x)
        return result


generator = torch.Generator().manual_seed(0)
x = torch.randn(20_000, 784, generator=generator)

job = pl.Job(
    model=Network, data=(x, x[:, :10].argmax(1)), loss=nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.SGD, lr=0.05), batch_size=int(os.environ.get("BATCH", "100")), epochs=10**6,
)  # fmt: skip
