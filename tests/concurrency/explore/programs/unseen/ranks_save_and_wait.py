"""Rank 0 writes a checkpoint and evaluates; the gather inside is called on rank 0 only."""

import os
import sys

import torch
import torch.distributed as dist

REPAIRED = "repaired" in sys.argv


def gathered(value):
    values = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(values, torch.tensor([value]))
    return [each.item() for each in values]


def main():
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    rank = dist.get_rank()
    total = torch.ones(1) * rank
    dist.all_reduce(total)
    if REPAIRED:
        values = gathered(float(rank))
    if rank == 0:
        if not REPAIRED:
            values = gathered(float(rank))
        assert sum(values) == total.item()
    dist.barrier()


main()
