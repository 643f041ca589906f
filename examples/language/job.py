"""A small language model: the next byte of a line of Python.

paceline train examples/language/job.py --plan ring --max-updates 300
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import paceline


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 64)
        self.layers = nn.GRU(64, 128, batch_first=True)
        self.head = nn.Linear(128, 128)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(codes))[0])


def evaluate(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of each line, over its bytes after the first, and how many these are."""
    lines, lengths = batch
    codes = lines.long()
    losses = cross_entropy(model(codes[:, :-1]).transpose(1, 2), codes[:, 1:], reduction="none")
    inside = torch.arange(1, codes.shape[1]) < lengths[:, None]
    return (losses * inside).sum(1), lengths - 1


def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    losses, lengths = evaluate(model, batch)
    return (losses / lengths).mean()


def nats_per_byte(losses: torch.Tensor, lengths: torch.Tensor) -> float:
    return float(losses.sum() / lengths.sum())


job = paceline.Job(
    model=Model,
    data=paceline.Shards("language-shards"),
    test=paceline.Shards("language-shards", "test"),
    step=step,
    evaluate=evaluate,
    metrics={"nats per byte": nats_per_byte},
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.003),
    batch_size=64,
    epochs=1,
    name="language",
)
