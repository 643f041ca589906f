"""Rank 1 skips a step whose loss is not finite; the others reduce their gradients in it."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

REPAIRED = "repaired" in sys.argv


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.randn(3, 4)).square().mean()
        bad = torch.tensor([float(rank == 1 and step == 2)])
        if REPAIRED:
            dist.all_reduce(bad)
        if bad.item():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


main()
