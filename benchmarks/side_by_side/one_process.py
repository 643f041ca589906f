"""A loop of plain PyTorch in one process."""

import os

import torch
from common import SGD, Batches, Clock, network
from torch import nn

torch.set_num_threads(int(os.environ["THREADS"]))
model, loss, clock = network(), nn.CrossEntropyLoss(), Clock()
optimizer = SGD(model.parameters())
for x, y in Batches():
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
    clock.tick()
