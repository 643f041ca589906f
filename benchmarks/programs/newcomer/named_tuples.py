"""Samples that are named tuples, attention with a padding mask."""

from collections import namedtuple

import torch
from torch import nn

import paceline

S = namedtuple("S", "x mask y")
data = [S(torch.randn(5, 4), torch.arange(5) < 1 + i % 5, torch.tensor(i % 3)) for i in range(90)]


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.MultiheadAttention(4, 2, batch_first=True)
        self.o = nn.Linear(4, 3)

    def forward(self, x, mask):
        h, _ = self.a(x, x, x, key_padding_mask=~mask, need_weights=False)
        return self.o((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


job = paceline.Job(
    M, data, nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.Adam(p), batch_size=18, epochs=2, test=data
)
