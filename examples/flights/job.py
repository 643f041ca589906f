"""Whether a flight arrives more than 15 minutes late: embeddings of words beside numbers.

paceline train examples/flights/job.py --plan ring
"""

import torch
from torch import nn

import paceline

train = paceline.Shards("flights-shards", normalize=["x"])


class Tabular(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        words = [len(train.words(name)) + 1 for name in ("carrier", "origin", "dest")]
        self.embeddings = nn.ModuleList(nn.Embedding(count, 8) for count in words)
        self.network = nn.Sequential(nn.Linear(3 * 8 + 6, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, carrier: torch.Tensor, origin: torch.Tensor, dest: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        parts = [each(words) for each, words in zip(self.embeddings, (carrier, origin, dest), strict=True)]
        return self.network(torch.cat([*parts, x], dim=1))[:, 0]


def step(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    *inputs, late = batch
    return nn.functional.binary_cross_entropy_with_logits(model(*inputs), late)


def evaluate(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    *inputs, late = batch
    return model(*inputs), late


def accuracy(outputs: torch.Tensor, late: torch.Tensor) -> float:
    return float(((outputs > 0) == (late > 0)).float().mean())


job = paceline.Job(
    model=Tabular,
    data=train,
    test=paceline.Shards("flights-shards", "test", normalize=["x"]),
    step=step,
    evaluate=evaluate,
    metrics={"accuracy": accuracy},
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.003),
    batch_size=256,
    epochs=1,
    name="flights",
)
