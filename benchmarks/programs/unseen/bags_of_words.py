"""Bags of words with offsets, sparse embeddings and SparseAdam beside a dense optimizer's settings."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Reviews(Dataset):
    def __len__(self):
        return 500

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        label = index % 2
        words = torch.randint(0, 500, (int(torch.randint(5, 20, (), generator=draw)),), generator=draw)
        return words + 500 * label * (torch.rand(len(words), generator=draw) < 0.3).long(), label


def collate(samples):
    lengths = torch.tensor([0, *(len(words) for words, _ in samples)])
    return torch.cat([words for words, _ in samples]), lengths.cumsum(0)[:-1], torch.tensor([y for _, y in samples])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(1000, 16, sparse=True)
        self.head = nn.Embedding(2, 16, sparse=True)

    def forward(self, words, offsets):
        return self.words(words, offsets) @ self.head(torch.arange(2)).T


job = paceline.Job(
    Bag,
    DataLoader(Reviews(), batch_size=50, shuffle=True, collate_fn=collate),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.SparseAdam(list(p), lr=1e-2),
    epochs=3,
)
