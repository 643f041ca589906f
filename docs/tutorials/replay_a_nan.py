# %% [markdown]
# # Replaying a NaN
#
# Two asynchronous workers train, and at some point the loss becomes NaN. Which batch was it? An ordinary asynchronous
# run cannot be repeated, because the order in which gradients arrived is gone. Paceline's trace has recorded that
# order: one process replays the run bit for bit and stops just before the update that broke it.

# %%
from functools import partial

import torch
from torch import nn

import paceline

generator = torch.Generator().manual_seed(0)
x = torch.randn(3000, 20, generator=generator)
y = torch.randint(3, (3000,), generator=generator)
x[1234, 5] = float("inf")  # one bad sample among three thousand

# %% [markdown]
# By default a run stops when a loss is not finite. Here it continues, as a training without any check would.

# %%
job = paceline.Job(
    model=lambda: nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3)),
    data=(x, y),
    loss=nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=50,
    on_nan="ignore",
)
run = paceline.train(job, "downpour", workers=2, folder=None)

# %% [markdown]
# The replay ends with the model as it was before the first loss that is not finite, and with the samples of the batch
# that caused it.

# %%
found = paceline.replay(run, until="nan")
bad = [n for n in found.guilty_samples.tolist() if not x[n].isfinite().all()]
print(f"{found.updates} good updates, then batch {found.guilty_update} with the bad samples {bad}")
assert bad == [1234]

# %% [markdown]
# On the command line the same is `paceline replay RUN --until nan`, and `--save FILE` keeps the model and the batch for
# your debugger. [Replay](../internals/replay.md) explains what is recorded and which plans cannot be replayed.
