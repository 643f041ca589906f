"""A word language model with tied weights on a long text cut into windows; perplexity by the test loss."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Windows(Dataset):
    def __init__(self, text, length):
        self.text, self.length = text, length

    def __len__(self):
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        return self.text[start : start + self.length], self.text[start + 1 : start + self.length + 1]


text = (torch.arange(20000) * 7 % 50 + torch.randint(3, (20000,), generator=torch.Generator().manual_seed(0))) % 50


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 24, batch_first=True)
        self.decoder = nn.Linear(24, 50, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, words):
        return self.decoder(self.lstm(self.embedding(words))[0])


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


job = paceline.Job(
    WordModel,
    DataLoader(Windows(text[:16000], 20), batch_size=20, shuffle=True),
    loss,
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    test=DataLoader(Windows(text[16000:], 20), batch_size=20),
    metrics={"perplexity": lambda output, target: loss(output, target).exp()},
    gradient_clip_norm=0.5,
    epochs=2,
)
