"""Your own training loop under any plan: `torchrun --nproc-per-node 2 own_loop.py downpour`."""

import os
import sys

import torch
from torch import nn

import paceline

PLAN = sys.argv[1] if len(sys.argv) > 1 else "downpour"
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

torch.manual_seed(RANK)
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(8000, 20, generator=generator)
target = (inputs[:, :5].sum(1) > 0).long()

model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
mine = torch.arange(RANK, len(inputs), RANKS)  # each process has batches of its own

with paceline.parallel(model, optimizer, plan=PLAN) as (model, optimizer):
    for _epoch in range(5):
        for batch in mine[torch.randperm(len(mine))].split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), target[batch]).backward()
            optimizer.step()
        schedule.step()

right = (model(inputs).argmax(1) == target).float().mean()
print(f"rank {RANK} of {RANKS}, {PLAN}: {right:.1%} right")
