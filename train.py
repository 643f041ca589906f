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
