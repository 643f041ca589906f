"""The jobs that are tuned here. Each is a function of a trial, ours or Optuna's, which it asks for what varies."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import paceline as pl
from paceline.training.jobs.built_ins import built_in

RATES = [0.005 * 10 ** (2 * n / 7) for n in range(8)]
DECAYS = [0.0, 1e-6, 1e-5, 1e-4]


@functools.cache
def whole(name: str) -> pl.Job:
    """A built-in job of one epoch without evaluation."""
    return built_in(name).with_(epochs=1, evaluate_every=None, test=None)


def of_grid(name: str, trial: Any) -> pl.Job:
    """A learning rate and a weight decay of a built-in job."""
    lr = trial.suggest_categorical("lr", RATES)
    decay = trial.suggest_categorical("weight_decay", DECAYS)
    return whole(name).with_(optimizer=partial(torch.optim.SGD, lr=lr, weight_decay=decay))


def dense(width: int, depth: int) -> nn.Module:
    layers = [nn.Flatten(), *(p for n in range(depth) for p in (nn.Linear(width if n else 784, width), nn.ReLU()))]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def mixed(trial: Any) -> pl.Job:
    """A random configuration of one of two architectures, on Fashion-MNIST."""
    width, depth = {"narrow": (64, 2), "wide": (96, 1)}[trial.suggest_categorical("net", ["narrow", "wide"])]
    optimizer = partial(
        torch.optim.SGD, lr=trial.suggest_float("lr", 1e-3, 0.5, log=True),
        momentum=trial.suggest_float("momentum", 0.0, 0.95),
        weight_decay=trial.suggest_float("weight_decay", 1e-7, 1e-3, log=True),
    )  # fmt: skip
    return whole("mnist-dnn").with_(model=partial(dense, width, depth), optimizer=optimizer)


class Attention(nn.Module):
    """One layer of a transformer, written out: softmax has no kernel."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.place = nn.Parameter(0.1 * torch.randn(length, dim))
        self.into, self.three, self.out = nn.Linear(4, dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.one, self.two = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down, self.head = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim), nn.Linear(dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x) + self.place
        q, k, v = self.three(self.one(h)).chunk(3, -1)
        h = h + self.out(torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v)
        h = h + self.down(torch.relu(self.up(self.two(h))))
        return self.head(h.mean(1))


@functools.cache
def sequences() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 12, 4, generator=generator)
    return x, (x[:, :6].sum((1, 2)) > x[:, 6:].sum((1, 2))).long() + (x[:, 0, 0] > 1).long()


def transformer(dim: int, trial: Any) -> pl.Job:
    """A learning rate of Adam."""
    lr = trial.suggest_float("lr", 1e-4, 1e-2, log=True)
    return pl.Job(
        model=partial(Attention, 12, dim), data=sequences(), loss=nn.CrossEntropyLoss(), batch_size=20, epochs=1,
        optimizer=partial(torch.optim.Adam, lr=lr), device="cpu",
    )  # fmt: skip


#: What is tuned: the job, the search, how many configurations, and how many of them Optuna runs.
PARTS: dict[str, tuple[Callable[[Any], pl.Job], str, int, int]] = {
    "dnn": (partial(of_grid, "mnist-dnn"), "grid", 32, 32),
    "cnn": (partial(of_grid, "mnist-cnn"), "grid", 32, 4),
    "mixed": (mixed, "random", 128, 16),
    "transformer-16": (partial(transformer, 16), "random", 16, 16),
    "transformer-64": (partial(transformer, 64), "random", 16, 16),
}
