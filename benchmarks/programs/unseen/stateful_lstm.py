"""Truncated back-propagation through time: the hidden state of one batch is where the next one begins."""

import torch
from torch import nn

import paceline

text = torch.tensor([ord(c) % 64 for c in "the quick brown fox jumps over the lazy dog " * 200])
chunks = text[: len(text) // 200 * 200].view(10, -1).unfold(1, 21, 20).transpose(0, 1)  # 10 streams side by side
rows = chunks.flatten(0, 1)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(64, 24), nn.LSTM(24, 48, batch_first=True), nn.Linear(48, 64)
        self.state = None

    def forward(self, words):
        state = self.state if self.state is not None and self.state[0].shape[1] == len(words) else None
        hidden, state = self.lstm(self.embed(words), state)
        self.state = tuple(each.detach() for each in state)
        return self.out(hidden).transpose(1, 2)


job = paceline.Job(
    Writer,
    (rows[:, :-1].contiguous(), rows[:, 1:].contiguous()),
    nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
    batch_size=10,
    shuffle=False,
    epochs=1,
)
