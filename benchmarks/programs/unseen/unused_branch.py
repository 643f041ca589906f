"""A model with two branches, of which a batch takes one: in every update some parameters have no gradient."""

import torch
from torch import nn

import paceline

draw = torch.Generator().manual_seed(0)
x = torch.randn(600, 8, generator=draw)
y = (x[:, 0] > 0).long()


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 16), nn.Linear(8, 16)
        self.never = nn.Linear(8, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        branch = self.left if x[:, 1].mean() > 0 else self.right
        return self.head(torch.relu(branch(x)))


job = paceline.Job(
    Branches, (x, y), nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.Adam(p, lr=1e-2), batch_size=30, epochs=2
)
