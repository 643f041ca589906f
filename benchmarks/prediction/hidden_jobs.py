"""Twenty jobs that neither a card nor a formula of the planner was fitted on: other layers, shapes and batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from paceline.training.jobs.job import Job

SAMPLES = 8192
ADAM, ADAMW = partial(torch.optim.Adam, lr=1e-3), partial(torch.optim.AdamW, lr=1e-3)
SGD, MOMENTUM = partial(torch.optim.SGD, lr=0.01), partial(torch.optim.SGD, lr=0.01, momentum=0.9)


def dense(*widths: int, between: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for first, second in pairwise(widths):
        layers += [nn.Linear(first, second), between()]
    return nn.Sequential(*layers[:-1])


class LastOutput(nn.Module):
    """A recurrent network, and a dense layer on its last output."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x)[0][:, -1])
        return scores


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.body(x)
        return result


class Encoder(nn.Module):
    """Blocks of attention over embedded tokens, and a dense layer on their mean."""

    def __init__(self, words: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, 10)
        self.body = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.words(x)).mean(1))
        return scores


class Messages(nn.Module):
    """Two rounds of messages along the edges of one graph, scattered to the nodes that they reach."""

    edges: Tensor

    def __init__(self, nodes: int, edges: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 10)
        self.register_buffer("edges", torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(5)))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        for layer in (self.first, self.second):
            values = torch.relu(layer(x))
            x = torch.zeros_like(values).index_add(1, target, values[:, source])
        scores: Tensor = self.head(x.mean(1))
        return scores


class Bag(nn.Module):
    """The mean of a bag's embeddings, and dense layers."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(words, width, mode="mean"), dense(width, 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.bag(x))
        return scores


def normed(channels: int, groups: int, pixels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.GroupNorm(groups, channels), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.GroupNorm(groups, 2 * channels), nn.ReLU(),
        nn.Flatten(), nn.Linear(2 * channels * (pixels // 2) ** 2, 10),
    )  # fmt: skip


def residual_cnn(channels: int) -> nn.Module:
    def block() -> nn.Module:
        return Residual(
            nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)
        )

    return nn.Sequential(
        nn.Conv2d(3, channels, 3, stride=2, padding=1), block(), block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(channels, 10),
    )  # fmt: skip


def residual_mlp() -> nn.Module:
    blocks = [Residual(nn.LayerNorm(96), nn.Linear(96, 192), nn.GELU(), nn.Linear(192, 96)) for _ in range(3)]
    return nn.Sequential(nn.Linear(40, 96), *blocks, nn.Linear(96, 10))


def classes(model: Callable[[], nn.Module], x: Tensor, batch: int, optimizer: Callable[..., Any] = SGD) -> Job:
    y = torch.randint(10, (len(x),), generator=torch.Generator().manual_seed(7))
    return Job(model, (x, y), nn.CrossEntropyLoss(), optimizer=optimizer, batch_size=batch, epochs=10**4)


def numbers(
    model: Callable[[], nn.Module], x: Tensor, y: Tensor, batch: int, optimizer: Callable[..., Any] = ADAM
) -> Job:
    return Job(model, (x, y), nn.MSELoss(), optimizer=optimizer, batch_size=batch, epochs=10**4)


def rows(*shape: int, samples: int = SAMPLES, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(samples, *shape, generator=torch.Generator().manual_seed(6), dtype=dtype)


def words(count: int, each: int, samples: int = SAMPLES) -> Tensor:
    return torch.randint(count, (samples, each), generator=torch.Generator().manual_seed(6))


def auto_encoder(x: Tensor, batch: int, *widths: int) -> Job:
    return numbers(lambda: dense(*widths, *reversed(widths[:-1])), x, x, batch, ADAMW)


def double() -> Job:
    x = rows(24, dtype=torch.float64)
    return numbers(lambda: dense(24, 80, 80, 1, between=nn.Tanh).double(), x, x.sum(1, keepdim=True).sin(), 64)


JOBS: dict[str, Callable[[], Job]] = {
    "GRU, batch 32": lambda: classes(lambda: LastOutput(nn.GRU(10, 40, batch_first=True), 40), rows(16, 10), 32, ADAM),
    "GRU of two layers, 256": lambda: classes(
        lambda: LastOutput(nn.GRU(12, 24, num_layers=2, batch_first=True), 24), rows(12, 12), 256
    ),
    "LSTM, 16": lambda: classes(lambda: LastOutput(nn.LSTM(20, 56, batch_first=True), 56), rows(10, 20), 16, MOMENTUM),
    "LSTM both ways, 128": lambda: classes(
        lambda: LastOutput(nn.LSTM(8, 32, bidirectional=True, batch_first=True), 64), rows(20, 8), 128, ADAM
    ),
    "encoder, 16": lambda: classes(lambda: Encoder(300, 40, 4, 2), words(300, 20), 16, ADAMW),
    "encoder, 128": lambda: classes(lambda: Encoder(2000, 64, 4, 1), words(2000, 12), 128, ADAM),
    "conv, group norm, 32": lambda: classes(lambda: normed(12, 3, 18), rows(3, 18, 18, samples=2048), 32, MOMENTUM),
    "conv, group norm, 256": lambda: classes(lambda: normed(8, 4, 12), rows(3, 12, 12, samples=4096), 256),
    "residual CNN, 32": lambda: classes(lambda: residual_cnn(20), rows(3, 20, 20, samples=2048), 32, MOMENTUM),
    "residual MLP, 128": lambda: classes(residual_mlp, rows(40), 128, ADAMW),
    "wide MLP, 64": lambda: classes(lambda: dense(300, 1200, 1200, 10), rows(300), 64),
    "wide MLP, 1,024": lambda: classes(lambda: dense(200, 900, 900, 10), rows(200), 1024, ADAM),
    "tiny MLP, 8": lambda: classes(lambda: dense(9, 14, 10, between=nn.Tanh), rows(9), 8),
    "tiny MLP, 4,096": lambda: classes(lambda: dense(16, 24, 10), rows(16, samples=32_768), 4096, ADAM),
    "deep narrow MLP, 64": lambda: classes(lambda: dense(32, *[32] * 8, 10, between=nn.SiLU), rows(32), 64, ADAM),
    "embeddings, 256": lambda: classes(lambda: Bag(20_000, 24), words(20_000, 10), 256),
    "auto-encoder, 64": lambda: auto_encoder(rows(144), 64, 144, 72, 12),
    "auto-encoder, 512": lambda: auto_encoder(rows(400), 512, 400, 128, 32),
    "scatter on a graph, 32": lambda: classes(lambda: Messages(30, 120, 24), rows(30, 8), 32, ADAM),
    "float64, 64": double,
}
