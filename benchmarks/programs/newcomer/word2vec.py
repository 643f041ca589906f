"""Skip-grams with negative samples, sparse embeddings and SparseAdam."""

import torch
from torch import nn

import paceline


class SG(nn.Module):
    def __init__(self):
        super().__init__()
        self.i, self.o = nn.Embedding(200, 16, sparse=True), nn.Embedding(200, 16, sparse=True)

    def forward(self, c, p, n):
        v = self.i(c)
        pos = (v * self.o(p)).sum(-1)
        neg = (self.o(n) @ v[:, :, None])[..., 0]
        return -(nn.functional.logsigmoid(pos) + nn.functional.logsigmoid(-neg).sum(-1)).mean()


g = torch.Generator().manual_seed(0)
c, p, n = (torch.randint(0, 200, s, generator=g) for s in ((600,), (600,), (600, 5)))
job = paceline.Job(
    SG,
    (c, p, n),
    step=lambda m, b: m(*b),
    optimizer=lambda p: torch.optim.SparseAdam(list(p), lr=0.01),
    batch_size=60,
    epochs=2,
)
