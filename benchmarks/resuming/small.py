"""The job whose runs are killed: dropout, batch-norm statistics, Adam, a schedule, evaluations on the way."""

from functools import partial

import torch
from torch import nn

import paceline as pl

torch.set_num_threads(1)
x = torch.randn(2000, 40, generator=torch.Generator().manual_seed(0))
y = torch.randint(8, (2000,), generator=torch.Generator().manual_seed(1))


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(40, 200),
        nn.Tanh(),
        nn.BatchNorm1d(200),
        nn.Dropout(0.1),
        nn.Linear(200, 200),
        nn.Tanh(),
        nn.Linear(200, 8),
    )


job = pl.Job(
    model=net,
    data=(x, y),
    test=(x[:200], y[:200]),
    loss=nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.Adam, lr=0.003),
    lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998),
    batch_size=20,
    epochs=15,
    evaluate_every=100,
    seed=5,
)
