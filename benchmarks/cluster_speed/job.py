"""The network of the benchmark: 784-h-h-10 with tanh and dropout, by batches of 100. HIDDEN is h."""

import os
from functools import partial

import torch
from torch import nn

import paceline as pl
from paceline.training.jobs.built_ins import mnist


def network(hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, hidden), nn.Tanh(), nn.Dropout(0.1),
        nn.Linear(hidden, hidden), nn.Tanh(), nn.Dropout(0.1),
        nn.Linear(hidden, 10),
    )  # fmt: skip


SGD = partial(torch.optim.SGD, lr=0.05, weight_decay=1e-5)

job = pl.Job(
    model=partial(network, int(os.environ.get("HIDDEN", "64"))), data=mnist(None)[0], loss=nn.CrossEntropyLoss(),
    optimizer=SGD, batch_size=int(os.environ.get("BATCH", "100")), epochs=10**6,
)  # fmt: skip
