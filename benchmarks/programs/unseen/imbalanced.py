"""A Sampler of one's own that draws each batch with as many rare samples as frequent ones; focal loss with weights."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import paceline

draw = torch.Generator().manual_seed(0)
x = torch.randn(1000, 6, generator=draw)
y = (x[:, 0] + x[:, 1] > 2).long()


class Balanced(Sampler):
    def __init__(self, labels, size):
        self.labels, self.size = labels, size

    def __iter__(self):
        rare, often = torch.nonzero(self.labels == 1)[:, 0], torch.nonzero(self.labels == 0)[:, 0]
        for _ in range(len(self)):
            half = self.size // 2
            chosen = [rare[torch.randint(len(rare), (half,))], often[torch.randint(len(often), (half,))]]
            yield torch.cat(chosen).tolist()

    def __len__(self):
        return len(self.labels) // self.size


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma
        self.register_buffer("weight", torch.tensor([1.0, 2.0]))

    def forward(self, output, target):
        each = nn.functional.cross_entropy(output, target, reduction="none")
        return (self.weight[target] * (1 - (-each).exp()) ** self.gamma * each).mean()


job = paceline.Job(
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)),
    DataLoader(TensorDataset(x, y), batch_sampler=Balanced(y, 40)),
    FocalLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    epochs=3,
)
