"""The networks that are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from paceline.training.jobs.modules import Residual, Subsampling

RATE = 0.05
SGD = partial(torch.optim.SGD, lr=RATE)


@dataclass(frozen=True)
class Network:
    """A network and the size of its data."""

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    batch: int
    samples: int  # of an epoch
    vocabulary: int = 0  # of inputs that are tokens

    def data(self, samples: int) -> tuple[Tensor, Tensor]:
        """Random numbers: time does not depend on them."""
        generator = torch.Generator().manual_seed(0)
        if self.vocabulary:
            x = torch.randint(self.vocabulary, (samples, *self.inputs), generator=generator)
        else:
            x = torch.rand(samples, *self.inputs, generator=generator)
        return x, torch.randint(10, (samples,), generator=generator)


class LastState(nn.Module):
    """An LSTM, and a dense layer on its last output."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(features, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.recurrent(x)
        scores: Tensor = self.head(outputs[:, -1])
        return scores


class Encoder(nn.Module):
    """Two layers of an encoder over tokens and their positions, and a dense layer on the mean of all steps."""

    def __init__(self, vocabulary: int, steps: int, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(steps, width))
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.tokens(x) + self.positions).mean(dim=1))
        return scores


def residual() -> nn.Module:
    """The network of the built-in job cifar-resnet."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        Residual(16),
        Residual(16),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def categories() -> nn.Module:
    """A dense network on the embeddings of ten categories."""
    return nn.Sequential(
        nn.Embedding(500, 16),
        nn.Flatten(),
        nn.Linear(160, 64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def mnist_cnn() -> nn.Module:
    """The published study's network."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 6, 5),
        nn.Sigmoid(),
        Subsampling(),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(6 * 36, 10),
    )


def mnist_dnn() -> nn.Module:
    """A dense network of two hidden layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 10),
    )


def lenet() -> nn.Module:
    """LeNet-5 with average pooling."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )


def tabular() -> nn.Module:
    """A dense network for rows of 64 numbers."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


CNN = Network("mnist-cnn", mnist_cnn, (28, 28), 64, 60_000)
ONE_BY_ONE = Network("mnist-cnn, batch 1", mnist_cnn, (28, 28), 1, 60_000)
NETWORKS = (
    CNN,
    ONE_BY_ONE,
    Network("mnist-dnn", mnist_dnn, (28, 28), 100, 60_000),
    Network("LeNet-5", lenet, (28, 28), 64, 60_000),
    Network("tabular 64-128-64", tabular, (64,), 64, 60_000),
    Network("LSTM 32, 50 steps", lambda: LastState(8, 32), (50, 8), 64, 10_000),
    Network("encoder 64, 64 steps", lambda: Encoder(1000, 64, 64), (64,), 32, 2_000, 1000),
    Network("10 categories, embedded", categories, (10,), 32, 60_000, 500),
    Network("residual CNN 16", residual, (3, 32, 32), 32, 2_000),
)
