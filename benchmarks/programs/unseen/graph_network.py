"""Graphs of different sizes, padded to a dense adjacency with a mask; the model pools over nodes that are there."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Graphs(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        nodes = int(torch.randint(4, 12, (), generator=draw))
        dense = index % 2
        edges = (torch.rand(nodes, nodes, generator=draw) < (0.6 if dense else 0.2)).float()
        return {
            "x": torch.rand(nodes, 5, generator=draw),
            "edges": torch.triu(edges, 1) + torch.triu(edges, 1).T,
        }, dense


def collate(samples):
    most = max(len(graph["x"]) for graph, _ in samples)
    x, edges = torch.zeros(len(samples), most, 5), torch.zeros(len(samples), most, most)
    mask = torch.zeros(len(samples), most, dtype=torch.bool)
    for row, (graph, _) in enumerate(samples):
        n = len(graph["x"])
        x[row, :n], edges[row, :n, :n], mask[row, :n] = graph["x"], graph["edges"], True
    return x, edges, mask, torch.tensor([label for _, label in samples])


class GraphConvolution(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.own, self.neighbours = nn.Linear(fan_in, fan_out), nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, x, edges):
        return torch.relu(self.own(x) + self.neighbours(edges @ x))


class GraphNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([GraphConvolution(5, 16), GraphConvolution(16, 16)])
        self.head = nn.Linear(16, 2)

    def forward(self, x, edges, mask):
        for layer in self.layers:
            x = layer(x, edges) * mask[..., None]
        return self.head(x.sum(1) / mask.sum(1, keepdim=True))


job = paceline.Job(
    GraphNetwork,
    DataLoader(Graphs(), batch_size=30, shuffle=True, collate_fn=collate),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    test=DataLoader(Graphs(), batch_size=100, collate_fn=collate),
    epochs=2,
)
