# %% [markdown]
# # A script of yours
#
# A training that is a script with its own loop stays one. Inside the block of `paceline.parallel`, `optimizer.step()`
# follows a plan: it exchanges with the other processes what the plan exchanges. `torchrun` starts the processes.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import os
import sys

import torch
from torch import nn

import paceline

rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
generator = torch.Generator().manual_seed(0)
x = torch.randn(4000, 20, generator=generator)
y = (x[:, :5].sum(1) > 0).long()

model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
mine = torch.arange(rank, len(x), ranks)  # each process has its own samples

with paceline.parallel(model, optimizer, plan=sys.argv[1]) as (model, optimizer):
    for epoch in range(3):
        for batch in mine[torch.randperm(len(mine))].split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()

if rank == 0:
    print(f"{sys.argv[1]} on {ranks}: {(model(x).argmax(1) == y).float().mean():.1%} right")
"""
script = Path(tempfile.mkdtemp()) / "train.py"
_ = script.write_text(SCRIPT)

# %% [markdown]
# Two processes with averaged gradients, and two with an asynchronous parameter server. The server is not a process: it
# is memory that the ranks share.

# %%
for plan in ("ring", "downpour"):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), plan]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=300)
    print(done.stdout.strip() or done.stderr)
    assert done.returncode == 0

# %% [markdown]
# Is it worth it? `paceline compare --script 'train.py'` times a script that uses `torch.distributed` with gloo and with
# Paceline's [backend](../internals/backend.md), and with one process beside them.
# [A loop of your own](../internals/own-loop.md) lists what is guaranteed inside and after the block.
