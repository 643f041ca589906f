"""Three asynchronous processes train until a loss is NaN; the replay stops just before, at the guilty batch."""

from functools import partial

import torch
from torch import nn

import paceline

x, y = torch.randn(3000, 20), torch.randint(3, (3000,))
x[1234, 5] = float("inf")  # one bad sample among three thousand

job = paceline.Job(
    model=lambda: nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3)),
    data=(x, y),
    loss=nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=50,
    on_nan="ignore",  # the default would stop the run
)
run = paceline.train(job, "downpour", workers=3)
found = paceline.replay(run, until="nan")
bad = [n for n in found.guilty_samples.tolist() if not x[n].isfinite().all()]
print(f"after {found.updates} good updates came batch {found.guilty_update}; its bad samples: {bad}")
assert bad == [1234]
