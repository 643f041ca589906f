"""Ranks that the script starts as processes: rank 1 waits in a barrier that rank 0 never calls."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

REPAIRED = "repaired" in sys.argv


def run(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29500"
    dist.init_process_group("gloo", rank=rank, world_size=world)
    value = torch.zeros(1)
    if rank == 0:
        dist.send(value + 1, dst=1)
    else:
        dist.recv(value, src=0)
        assert value.item() == 1
    if rank == 1 or REPAIRED:
        dist.barrier()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    processes = [mp.Process(target=run, args=(rank, 2)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
