"""DistributedDataParallel, started by torchrun; over Paceline's backend if BACKEND says so."""

import os

import torch
import torch.distributed as dist
from common import SGD, Batches, Clock, network
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group(os.environ["BACKEND"])
model, loss, clock = DistributedDataParallel(network()), nn.CrossEntropyLoss(), Clock()
optimizer = SGD(model.parameters())
for x, y in Batches():
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
    if dist.get_rank() == 0:
        clock.tick()
dist.destroy_process_group()
