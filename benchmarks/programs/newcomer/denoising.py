"""A denoising model that keeps an average of its own weights."""

import copy

import torch
from torch import nn

import paceline


class Diff(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 2))
        self.ema = copy.deepcopy(self.net).requires_grad_(False)
        self.register_buffer("ab", torch.linspace(1, 0.01, 50))

    @torch.no_grad()
    def update(self):
        for a, b in zip(self.ema.parameters(), self.net.parameters(), strict=False):
            a.lerp_(b, 0.01)

    def forward(self, x):
        t = torch.randint(0, 50, (len(x),))
        a = self.ab[t][:, None]
        e = torch.randn_like(x)
        if self.training:
            self.update()
        return ((self.net(torch.cat([a.sqrt() * x + (1 - a).sqrt() * e, t[:, None] / 50], 1)) - e) ** 2).mean()


job = paceline.Job(
    Diff,
    (torch.randn(200, 2),),
    step=lambda m, b: m(b[0]),
    optimizer=lambda m: torch.optim.AdamW([p for p in m if p.requires_grad], 1e-3),
    batch_size=20,
    epochs=2,
)
