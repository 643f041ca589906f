"""Neighbours exchange rows around a ring: every rank receives before it sends."""

import sys

import torch
import torch.distributed as dist

REPAIRED = "repaired" in sys.argv


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, other = torch.full((3,), float(rank)), torch.empty(3)
    if REPAIRED:
        request = dist.isend(mine, (rank + 1) % world)
        dist.recv(other, (rank - 1) % world)
        request.wait()
    else:
        dist.recv(other, (rank - 1) % world)
        dist.send(mine, (rank + 1) % world)
    assert other[0].item() == (rank - 1) % world


main()
