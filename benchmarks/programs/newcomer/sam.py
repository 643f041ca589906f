"""SAM as an optimizer that calls its closure."""

import torch
from torch import nn

import paceline

x = torch.randn(100, 3)
y = x.sum(1, keepdim=True)


class SAM(torch.optim.Optimizer):
    def __init__(self, p, base, rho=0.05):
        super().__init__(list(p), {"rho": rho})
        self.base = base(self.param_groups)

    def step(self, closure):
        loss = closure()
        self.base.step()
        return loss


job = paceline.Job(
    lambda: nn.Linear(3, 1),
    (x, y),
    nn.MSELoss(),
    optimizer=lambda p: SAM(p, lambda g: torch.optim.SGD(g, 0.01)),
    batch_size=20,
)
