"""Two views with a learnt temperature: every sample is a negative for every other."""

import torch
from torch import nn

import paceline


class Enc(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 16))
        self.t = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return nn.functional.normalize(self.f(x), dim=1)


def step(m, b):
    (x,) = b
    a, c = m(x + 0.1 * torch.randn_like(x)), m(x.flip(-1))
    sim = a @ c.T * m.t.exp()
    t = torch.arange(len(x))
    return (nn.functional.cross_entropy(sim, t) + nn.functional.cross_entropy(sim.T, t)) / 2


job = paceline.Job(
    Enc,
    (torch.randn(96, 3, 8, 8),),
    step=step,
    optimizer=lambda p: torch.optim.SGD(p, lr=0.05),
    batch_size=24,
    epochs=2,
)
