"""Accelerate's loop, started by torchrun as `accelerate launch` does; under a plan of Paceline if PLAN names one."""

import os

import torch
from common import SGD, Batches, Clock, network
from torch import nn

torch.set_num_threads(1)
plan = os.environ["PLAN"]
if plan:
    from paceline.adapters.accelerate import Accelerator

    accelerator = Accelerator(plan)
else:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
torch.set_num_threads(1)
model = network()
model, optimizer = accelerator.prepare(model, SGD(model.parameters()))
loss, clock = nn.CrossEntropyLoss(), Clock()
for x, y in Batches():
    optimizer.zero_grad()
    accelerator.backward(loss(model(x), y))
    optimizer.step()
    if accelerator.is_main_process:
        clock.tick()
accelerator.end_training()
