# %% [markdown]
# # Your own model
#
# This tutorial trains a small classifier of your own by four plans and compares what they cost and what they reach.
# A *job* says what is trained; a *plan* says how it is trained in parallel. Neither knows the other, so one job can be
# trained by every plan.

# %%
from functools import partial

import torch
from torch import nn

import paceline

generator = torch.Generator().manual_seed(0)
x = torch.randn(4000, 32, generator=generator)
y = (x @ torch.randn(32, 5, generator=generator)).argmax(1)

# %% [markdown]
# The model is given as a function, so that every worker can build it. The optimizer is your own `torch.optim` class,
# and the loss any function of `(output, target)`. Nothing else changes from a script for one process.


# %%
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

# %% [markdown]
# `train` runs the job by one plan and returns a run: the trained model, the trace of every update and a summary.
# `sequential` is one process. `ring` averages gradients in every update. Under `downpour`, each worker pushes its
# gradient to a parameter server without waiting for the others, so gradients are computed from older parameters: their
# *staleness* is counted in updates.

# %%
for plan in ("sequential", "ring:workers=2", "downpour:workers=2", "downpour:workers=2,shards=3"):
    run = paceline.train(job, plan, folder=None)
    summary = run.summary()
    print(f"{plan:28} accuracy {summary['test_accuracy']:.1%}, mean staleness {summary['staleness']['mean']:.2f}")

# %% [markdown]
# The synchronous plan `ring` computes what one process computes from the same batches. The asynchronous ones differ a
# little from run to run, and each of their runs can be replayed bit for bit.
#
# To learn which plan is fastest on your machine, use `paceline.compare(job)`, or put the job into a file and type
# `paceline compare my_job.py`. A single timed run, as above, says little: machines are busy in different ways from one
# minute to the next, and a comparison alternates between the plans for that reason.
