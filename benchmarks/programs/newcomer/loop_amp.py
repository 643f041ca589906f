"""A loop with accumulation, autocast, clipping, a schedule, DistributedSampler and an evaluation in between."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import paceline

x = torch.randn(400, 10, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()


def main(plan):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    with paceline.parallel(model, optimizer, plan=plan, folder=None) as (model, optimizer):
        data = TensorDataset(x, y)
        several = torch.distributed.is_initialized()
        sampler = DistributedSampler(data) if several else None
        loader = DataLoader(data, 20, sampler=sampler)
        for epoch in range(3):
            if sampler:
                sampler.set_epoch(epoch)
            for number, (inputs, target) in enumerate(loader):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(inputs), target)
                (loss / 2).backward()
                if number % 2:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad(set_to_none=True)
            model.eval()
            with torch.no_grad():
                nn.functional.cross_entropy(model(x), y)
            model.train()
    return float(loss.detach())


if __name__ == "__main__":
    print(f"loss {main(sys.argv[1]):.4f}")
