"""Early stopping that each rank decides by its own validation loss."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

REPAIRED = "repaired" in sys.argv


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(6):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        patience = torch.tensor([float(epoch - rank)])
        if REPAIRED:
            dist.all_reduce(patience, dist.ReduceOp.MAX)
        if patience.item() > 2:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
