"""An ordinary DDP script over Paceline's shared memory: only the backend of init_process_group changes.

Start it with: torchrun --nproc-per-node 2 examples/ddp_script.py
"""

import os
import sys

import paceline.backend  # noqa: F401  registers "paceline"; not needed where paceline is installed by pip
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if "RANK" not in os.environ:  # started without torchrun
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    os.execv(sys.executable, [*torchrun, __file__])

torch.set_num_threads(1)
dist.init_process_group("paceline")  # was: "gloo"
rank, ranks = dist.get_rank(), dist.get_world_size()

x = torch.randn(4000, 20, generator=torch.Generator().manual_seed(0))
y = (x[:, :5].sum(1) > 0).long()
x, y = x[rank::ranks], y[rank::ranks]  # this rank's own samples

torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = nn.CrossEntropyLoss()
for _ in range(5):
    for batch in range(0, len(x), 50):
        optimizer.zero_grad()
        loss(model(x[batch : batch + 50]), y[batch : batch + 50]).backward()
        optimizer.step()

right = (model(x).argmax(1) == y).sum()
dist.all_reduce(right)
if rank == 0:
    print(f"{ranks} processes, {int(right) / 4000:.1%} right")
dist.destroy_process_group()
