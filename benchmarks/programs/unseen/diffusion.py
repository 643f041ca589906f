"""A diffusion model: a random time and random noise for every sample, drawn in the loss."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

angle = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 2 * math.pi
points = torch.stack([angle.cos(), angle.sin()], 1)
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.2, 50), 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 16)
        self.net = nn.Sequential(nn.Linear(18, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


def step(model, batch):
    (x,) = batch
    t, noise = torch.randint(0, 50, (len(x),)), torch.randn_like(x)
    share = kept[t][:, None]
    return nn.functional.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)


job = paceline.Job(
    Denoiser,
    DataLoader(TensorDataset(points), batch_size=100, shuffle=True),
    step=step,
    optimizer=lambda p: torch.optim.AdamW(p, lr=2e-3),
    lr_scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=5e-3, total_steps=30),
    epochs=3,
)
