"""A batch sampler that puts sentences of similar length together."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Sampler

import paceline

rng = random.Random(3)
samples = []
for _ in range(700):
    tokens = torch.tensor([rng.randrange(1, 30) for _ in range(rng.randrange(2, 30))])
    samples.append((tokens, int(tokens.float().mean() > 15)))


class ByLength(Sampler):
    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = lengths, batch_size

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i] + random.random())
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        random.shuffle(batches)
        yield from batches


def collate(rows):
    return pad_sequence([tokens for tokens, _ in rows], batch_first=True), torch.tensor([label for _, label in rows])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.gru = nn.GRU(8, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens):
        return self.head(self.gru(self.embedding(tokens))[1][0])


job = paceline.Job(
    Model,
    DataLoader(samples, batch_sampler=ByLength([len(t) for t, _ in samples], 32), collate_fn=collate),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    epochs=2,
)
