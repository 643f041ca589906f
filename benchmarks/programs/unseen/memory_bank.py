"""MoCo: a slow copy of the encoder and a queue of its outputs, both changed in forward."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn

import paceline

images = torch.tensor(load_digits().data, dtype=torch.float32)[:800] / 16


class MoCo(nn.Module):
    def __init__(self, width=16, places=128):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, width))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(places, width), dim=1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        query = nn.functional.normalize(self.query(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
                slow.mul_(0.99).add_(fast, alpha=0.01)
            key = nn.functional.normalize(self.key(x + 0.1 * torch.randn_like(x)), dim=1)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.clone().T], 1) / 0.2
        if self.training:
            at = (int(self.place) + torch.arange(len(key))) % len(self.queue)
            self.queue[at] = key
            self.place.copy_((self.place + len(key)) % len(self.queue))
        return logits


def step(model, batch):
    (x,) = batch
    return nn.functional.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long))


job = paceline.Job(MoCo, (images,), step=step, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=40, epochs=2)
