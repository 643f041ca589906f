"""PyTorch's DDP over gloo for the network of hosts_job.py, with a communication hook: `hosts_ddp.py UPDATES HOOK`.

Rank 0 prints a JSON list of evaluations with the seconds since the first update; evaluating counts as no time.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter

import torch
import torch.distributed as dist
from hosts_job import job
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    updates, hook = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    module = job.model()
    # With several buckets ranks start the collectives of PowerSGD over gloo in different orders, and the run ends.
    ddp = DistributedDataParallel(module, bucket_cap_mb=1000 if hook == "powersgd" else None)
    if hook == "half":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = job.optimizer(ddp.parameters())
    (images, labels), (test, expected) = job.data, job.test
    share, found, spent = job.batch_size // world, [], 0.0
    generator = torch.Generator().manual_seed(0)
    for update in range(updates):
        chosen = torch.randint(len(images), (job.batch_size,), generator=generator)[rank * share : (rank + 1) * share]
        begun = perf_counter()
        optimizer.zero_grad()
        cross_entropy(ddp(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        spent += perf_counter() - begun
        if (update + 1) % job.evaluate_every == 0 and rank == 0:
            module.eval()
            with torch.no_grad():
                right = (module(test).argmax(1) == expected).float().mean().item()
            module.train()
            found.append({"updates": update + 1, "seconds": spent, "test_accuracy": right})
    if rank == 0:
        print(json.dumps({"history": found, "threads": os.environ.get("OMP_NUM_THREADS")}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
