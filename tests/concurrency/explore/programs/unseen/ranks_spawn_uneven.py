"""Spawned ranks with a list of files that does not divide evenly: the last rank has one all-reduce more."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

REPAIRED = "repaired" in sys.argv
FILES = [f"part-{number}" for number in range(5)]


def worker(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29500"
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mine = FILES[rank::world]
    if REPAIRED:
        mine = mine[: len(FILES) // world]
    for file in mine:
        size = torch.tensor([len(file)])
        dist.all_reduce(size)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
