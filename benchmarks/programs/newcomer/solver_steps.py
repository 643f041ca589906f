"""As many steps of a solver as the values need."""

import torch
from torch import nn

import paceline


class ODE(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
        self.o = nn.Linear(4, 1)

    def forward(self, x):
        k = 0
        while x.norm() < 60 and k < 10:
            x = x + 0.1 * self.f(x)
            k += 1
        return self.o(x).squeeze(-1)


x = torch.randn(150, 4)
y = x.sum(1)
job = paceline.Job(
    ODE, (x, y), nn.HuberLoss(), optimizer=lambda p: torch.optim.RAdam(p), batch_size=30, epochs=2, test=(x, y)
)
