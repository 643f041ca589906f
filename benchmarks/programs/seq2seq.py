"""A transformer from sequence to sequence with masks; a batch is a tuple of dictionaries."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import paceline

generator = torch.Generator().manual_seed(0)
pairs = []
for _ in range(500):
    source = torch.randint(3, 20, (int(torch.randint(4, 10, (), generator=generator)),), generator=generator)
    pairs.append((source, source.flip(0)))


def pad(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def collate(samples):
    source, target = pad([s for s, _ in samples]), pad([t for _, t in samples])
    begin = torch.ones(len(samples), 1, dtype=torch.long)
    return {"tokens": source, "mask": source == 0}, {"inputs": torch.cat([begin, target[:, :-1]], 1), "labels": target}


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.positions = nn.Embedding(16, 32)
        self.transformer = nn.Transformer(32, 2, 1, 1, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 20)

    def embed(self, tokens):
        return self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))

    def forward(self, source, mask, inputs):
        causal = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1]).isinf()
        hidden = self.transformer(
            self.embed(source), self.embed(inputs), tgt_mask=causal, src_key_padding_mask=mask,
            memory_key_padding_mask=mask,
        )  # fmt: skip
        return self.head(hidden)


def step(model, batch):
    source, target = batch
    output = model(source["tokens"], source["mask"], target["inputs"])
    return nn.functional.cross_entropy(output.flatten(0, 1), target["labels"].flatten(), ignore_index=0)


job = paceline.Job(
    Translator,
    DataLoader(pairs, batch_size=25, shuffle=True, collate_fn=collate),
    step=step,
    optimizer=lambda p: torch.optim.Adam(p, lr=1e-3),
    epochs=2,
)
