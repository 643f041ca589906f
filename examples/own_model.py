"""Your own model by four plans: everything that a script needs."""

from functools import partial

import torch
from torch import nn

import paceline

x = torch.randn(4000, 32)
y = (x @ torch.randn(32, 5)).argmax(1)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5))


job = paceline.Job(
    model=model,
    data=(x[:3200], y[:3200]),
    test=(x[3200:], y[3200:]),
    loss=nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.Adam, lr=3e-3),
    batch_size=40,
    epochs=3,
)

for plan in ("sequential", "ring:workers=2", "downpour:workers=2", "downpour:workers=2,shards=3"):
    run = paceline.train(job, plan)
    summary = run.summary()
    print(f"{plan:28} {summary['test_accuracy']:.1%}  staleness {summary['staleness']['mean']:.2f}")
