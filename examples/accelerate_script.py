"""An Accelerate script over Paceline: `torchrun --nproc-per-node 2 accelerate_script.py downpour`.

The argument is a plan, or a backend for Accelerate's own DDP: paceline, or gloo to compare.
"""

import os
import sys

import accelerate
import torch
import torch.distributed as dist
from paceline.adapters.accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WAY = sys.argv[1] if len(sys.argv) > 1 else "downpour"
if "RANK" not in os.environ:  # started without torchrun
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    os.execv(sys.executable, [*torchrun, __file__, WAY])

if WAY in ("gloo", "paceline"):
    dist.init_process_group(WAY)  # Accelerate uses the existing group
    accelerator = accelerate.Accelerator(cpu=True)
else:
    accelerator = Accelerator(WAY)

accelerate.utils.set_seed(0)
inputs = torch.randn(5000, 20)
data = TensorDataset(inputs, (inputs[:, :5].sum(1) > 0).long())
train, test = torch.utils.data.random_split(data, [4000, 1000])
model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(train, batch_size=50, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for _ in range(3):
    for batch, target in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(batch), target))
        optimizer.step()
accelerator.end_training()

if accelerator.is_main_process:
    inputs, target = test[:]
    with torch.no_grad():
        output = accelerator.unwrap_model(model)(inputs)
    right, loss = (output.argmax(1) == target).float().mean(), nn.functional.cross_entropy(output, target)
    print(f"{accelerator.num_processes} processes, {WAY}: {right:.1%} right, loss {loss:.8f}")
