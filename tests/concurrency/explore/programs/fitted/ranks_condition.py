"""Rank 0 reduces a loss that the other ranks never reduce."""

import os
import sys

import torch
import torch.distributed as dist

REPAIRED = "repaired" in sys.argv
dist.init_process_group(backend="gloo", init_method="env://")
rank = int(os.environ["RANK"])
loss = torch.tensor([1.0 + rank])
if rank == 0 or REPAIRED:
    dist.all_reduce(loss)
names = [None] * dist.get_world_size()
dist.all_gather_object(names, f"rank {rank}")
assert names[0] == "rank 0"
