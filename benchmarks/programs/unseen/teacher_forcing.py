"""A translator with attention: a coin decides at every position between the right word and the model's own."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline

WORDS, END = 20, 0


class Reversals(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        length = int(torch.randint(3, 8, (), generator=draw))
        words = torch.randint(1, WORDS, (length,), generator=draw)
        return words, torch.cat([words.flip(0), torch.tensor([END])])


def collate(pairs):
    sources, targets = zip(*pairs, strict=True)
    pad = nn.utils.rnn.pad_sequence
    return pad(sources, batch_first=True), pad(targets, batch_first=True, padding_value=-100)


class Translator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.cell = nn.GRUCell(2 * width, width)
        self.out = nn.Linear(width, WORDS)

    def forward(self, source, target, forcing=0.5):
        states, last = self.encoder(self.embed(source))
        state, word = last[0], torch.zeros(len(source), dtype=torch.long)
        logits = []
        for position in range(target.shape[1]):
            attention = torch.softmax((states @ state[:, :, None])[:, :, 0], 1)
            context = (attention[:, None] @ states)[:, 0]
            state = self.cell(torch.cat([self.embed(word), context], 1), state)
            logits.append(self.out(state))
            forced = random.random() < forcing
            word = target[:, position].clamp(min=0) if forced else logits[-1].argmax(1)
        return torch.stack(logits, 1)


def step(model, batch):
    source, target = batch
    return nn.functional.cross_entropy(model(source, target).flatten(0, 1), target.flatten(), ignore_index=-100)


job = paceline.Job(
    Translator,
    DataLoader(Reversals(), batch_size=40, shuffle=True, collate_fn=collate),
    step=step,
    loss_denominator=lambda batch: float((batch[1] != -100).sum()),
    optimizer=lambda p: torch.optim.Adam(p, lr=3e-3),
    gradient_clip_norm=1.0,
    epochs=2,
)
