"""A loop with GradScaler, clipping by value and an average of the weights."""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import paceline


def main(plan):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    with paceline.parallel(model, optimizer, plan=plan, folder=None) as (model, optimizer):
        for _ in range(20):
            x = torch.randn(16, 6)
            optimizer.zero_grad()
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(model)
    return float(loss.detach())


if __name__ == "__main__":
    print(f"loss {main(sys.argv[1]):.4f}")
