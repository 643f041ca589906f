"""Node classification: the dataset is one graph, one sample, and half of its nodes have labels."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline

draw = torch.Generator().manual_seed(0)
label = torch.arange(60) % 3
near = label[:, None] == label[None]
edges = (torch.rand(60, 60, generator=draw) < torch.where(near, 0.3, 0.02)).float()
features = torch.randn(60, 8, generator=draw) + nn.functional.one_hot(label, 8)


class OneGraph(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return features, edges / edges.sum(1, keepdim=True).clamp(min=1), torch.where(torch.arange(60) < 30, label, -1)


class Gcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x, edges):
        return self.second(edges @ torch.relu(self.first(edges @ x)))


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-1)


job = paceline.Job(
    Gcn, DataLoader(OneGraph(), batch_size=1), loss, optimizer=lambda p: torch.optim.Adam(p, lr=1e-2), epochs=20
)
