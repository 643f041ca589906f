"""Three quantiles by the pinball loss, with coverage as a metric."""

import torch
from torch import nn

import paceline

Q = torch.tensor([0.1, 0.5, 0.9])


def pinball(out, y):
    e = y[:, None] - out
    return torch.maximum(Q * e, (Q - 1) * e).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(5, 32), nn.ELU(), nn.Linear(32, 3))

    def forward(self, x):
        a = self.f(x)
        return torch.cat([a[:, :1], a[:, :1] + nn.functional.softplus(a[:, 1:]).cumsum(1)], 1)


x = torch.randn(400, 5)
y = x[:, 0] + torch.randn(400)
job = paceline.Job(
    Net,
    (x, y),
    pinball,
    optimizer=lambda p: torch.optim.NAdam(p, 1e-3),
    batch_size=40,
    epochs=3,
    test=(x, y),
    metrics={
        "coverage": lambda o, y: ((y > o[:, 0]) & (y < o[:, 2])).float().mean(),
        "rmse": lambda o, y: ((o[:, 1] - y) ** 2).mean().sqrt(),
    },
)
