"""Sentences of different lengths, padded by a collate_fn."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import paceline

rng = random.Random(0)


def sentence():
    label = rng.randrange(2)
    words = [rng.randrange(1, 50) + 50 * label * (rng.random() < 0.5) for _ in range(rng.randrange(3, 20))]
    return words, label


sentences = [sentence() for _ in range(800)]  # a plain list is a map-style dataset


def collate(samples):
    tokens = pad_sequence([torch.tensor(words) for words, _ in samples], batch_first=True)
    return tokens, torch.tensor([label for _, label in samples])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16, padding_idx=0)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens):
        mask = (tokens != 0).unsqueeze(-1)
        return self.head((self.embedding(tokens) * mask).sum(1) / mask.sum(1))


job = paceline.Job(
    Bag(),
    DataLoader(sentences[:600], batch_size=32, shuffle=True, collate_fn=collate),
    nn.functional.cross_entropy,
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
    test=DataLoader(sentences[600:], batch_size=64, collate_fn=collate),
    epochs=3,
)
