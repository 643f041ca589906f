"""Two spawned ranks broadcast and reduce in different orders."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

REPAIRED = "repaired" in sys.argv
counter = 0


def worker(rank, world):
    global counter
    counter += 1
    assert counter == 1, "module state is shared between ranks"
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29501", rank=rank, world_size=world)
    value = torch.ones(2) * rank
    if rank == 0 or REPAIRED:
        dist.broadcast(value, 0)
        dist.all_reduce(value)
    else:
        dist.all_reduce(value)
        dist.broadcast(value, 0)


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2, join=True)
