"""A small GPT written by hand: tied embeddings, a causal mask as a buffer, groups without weight decay."""

import torch
from torch import nn

import paceline

text = torch.tensor([ord(c) % 64 for c in "she sells sea shells by the sea shore and " * 120])
rows = text.unfold(0, 17, 8)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.triu(torch.ones(16, 16, dtype=torch.bool), 1), persistent=False)

    def forward(self, x):
        h = self.before(x)
        mask = self.mask[: x.shape[1], : x.shape[1]]
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.after(x))


class Gpt(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(64, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 64, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def optimizer(model):
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=3e-3)


job = paceline.Job(
    Gpt,
    (rows[:, :-1].contiguous(), rows[:, 1:].contiguous()),
    lambda output, target: nn.functional.cross_entropy(output.flatten(0, 1), target.flatten()),
    optimizer=optimizer,
    gradient_clip_norm=1.0,
    batch_size=40,
    epochs=2,
)
