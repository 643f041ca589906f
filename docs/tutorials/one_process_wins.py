# %% [markdown]
# # When one process is the best you can do
#
# Two processes have to agree, and agreement costs time. Whether it is worth it depends on how much is computed between
# two exchanges. This tutorial times one job at two batch sizes, and prints the answer of the comparison as it is.

# %%
from functools import partial

import torch
from torch import nn

import paceline

generator = torch.Generator().manual_seed(0)
x = torch.randn(4096, 64, generator=generator)
y = (x[:, 0] > 0).long()


def job(batch_size: int) -> paceline.Job:
    return paceline.Job(
        model=lambda: nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 2)),
        data=(x, y),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.05),
        batch_size=batch_size,
    )


# %% [markdown]
# A comparison trains the whole job by every plan, and then times them in interleaved rounds: one round of each plan,
# then the next round of each. It also times the *ceiling*, as many workers that never communicate, which no plan of
# that many workers can exceed by much.

# %%
for batch_size in (8, 512):
    found = paceline.compare(job(batch_size), ["sequential", "ring"], workers=2, seconds=1, folder=None)
    print(f"--- batches of {batch_size}")
    print(found)

# %% [markdown]
# Small batches leave little to compute between two exchanges. If the answer is undecided, the intervals are too wide,
# as they are on a busy machine: time it longer, with `seconds=60`.
#
# If one process wins, there is still something to gain: a larger batch, fewer exchanges (`local_sgd`), no waiting
# (`downpour`), or [compiled kernels](../internals/kernels.md) for a small network.
