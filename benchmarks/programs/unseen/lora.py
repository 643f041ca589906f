"""Low-rank adapters on a frozen transformer: most parameters have no gradient, and are not the optimizer's."""

import torch
from torch import nn

import paceline

draw = torch.Generator().manual_seed(0)
words = torch.randint(0, 30, (400, 12), generator=draw)
label = (words.float().mean(1) > 15).long()


class Adapted(nn.Module):
    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, linear.in_features) * 0.05)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + x @ self.down.T @ self.up.T


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        )
        self.requires_grad_(False)
        for layer in self.encoder.layers:
            layer.linear1, layer.linear2 = Adapted(layer.linear1), Adapted(layer.linear2)
        self.head = nn.Linear(32, 2)

    def forward(self, words):
        return self.head(self.encoder(self.embed(words)).mean(1))


job = paceline.Job(
    Classifier,
    (words, label),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.AdamW([each for each in p if each.requires_grad], lr=3e-3),
    batch_size=40,
    epochs=2,
)
