"""DDP over gloo in two processes: prints samples per second. Arguments: hidden units, seconds."""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 100


def train(rank: int, seconds: float) -> None:
    from job import SGD, job

    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    x, y = job.data
    model = DistributedDataParallel(job.make_model())
    optimizer, loss = SGD(model.parameters()), nn.CrossEntropyLoss()
    order, steps, rounds = torch.randperm(len(x)), 0, 50

    def some(count: int) -> float:
        nonlocal steps
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            at = (2 * steps + rank) * BATCH % (len(x) - BATCH)
            which = order[at : at + BATCH]
            optimizer.zero_grad()
            loss(model(x[which]), y[which]).backward()
            optimizer.step()
            steps += 1
        return time.perf_counter() - begun

    warm = some(rounds)
    # All ranks make as many steps: rank 0 decides.
    count = torch.tensor([max(rounds, int(seconds / (warm / rounds)))])
    dist.broadcast(count, 0)
    took = some(int(count))
    if rank == 0:
        print(2 * BATCH * int(count) / took)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), HIDDEN=sys.argv[1])
    mp.spawn(train, (float(sys.argv[2]),), nprocs=2)
