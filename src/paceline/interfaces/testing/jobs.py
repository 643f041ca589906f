"""Small float64 jobs: dropout, batch-norm, recurrence, attention, tied weights and two heads, two parameter groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.training.jobs.job import Job

SAMPLES = 61  # odd, so that nothing divides


def _data(*shape: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (SAMPLES,), generator=generator)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 16),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(16, 9),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(9, 5),
    ).double()


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 4, 3, padding=1)
        self.norm, self.body = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.enter(x))
        x = x + self.body(F.relu(self.norm(x)))
        result: Tensor = self.head(x.mean((2, 3)))
        return result


class _ResidualBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.body = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.body(F.relu(self.norm(x)))
        return result


def _deep_residual() -> nn.Module:
    blocks = [_ResidualBlock() for _ in range(5)]
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    )


def _deep_mlp() -> nn.Module:
    parts = [part for _ in range(5) for part in (nn.Linear(12, 12), nn.Tanh(), nn.Dropout(0.1))]
    return nn.Sequential(*parts, nn.Linear(12, 5))


class _Lstm(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=layers, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.lstm(x)[0][:, -1])
        return result


class _Transformer(nn.Module):
    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.encoder(x).mean(1))
        return result


class _TiedAutoEncoder(nn.Module):
    """Encoder and decoder share one matrix; a second head classifies; one parameter never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(12, 7, bias=False)
        self.decode = nn.Linear(7, 12, bias=False)
        self.decode.weight = nn.Parameter(self.encode.weight.detach())
        self.encode.weight = self.decode.weight  # one parameter under two names
        self.classify = nn.Linear(7, 5)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(F.linear(x, self.encode.weight))
        return F.linear(hidden, self.encode.weight.T), self.classify(hidden)


class _DeepTied(nn.Module):
    """A tied auto-encoder with layers before and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(*(part for _ in range(5) for part in (nn.Linear(12, 12), nn.Tanh())))
        self.tied = _TiedAutoEncoder()
        self.leave = nn.Sequential(*(part for _ in range(4) for part in (nn.Tanh(), nn.Linear(12, 12))))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rebuilt, scores = self.tied(self.enter(x))
        return self.leave(rebuilt), scores


def _two_heads(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    rebuilt, scores = model(x)
    return F.mse_loss(rebuilt, x) + F.cross_entropy(scores, y)


def _two_groups(model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    return torch.optim.SGD(
        [{"params": parameters[:2], "lr": 0.05}, {"params": parameters[2:], "weight_decay": 0.01}],
        lr=0.1,
        momentum=0.9,
    )


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
    # At larger rates Adagrad makes steps of the rounding noise in gradients that are truly zero (a key bias's).
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
    "two-groups": _two_groups,
}


def _job(model: Callable[[], nn.Module], data: Any, **rest: Any) -> Job:
    defaults: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": OPTIMIZERS["momentum"], "device": "cpu"}
    return Job(model=model, data=data, batch_size=14, epochs=4, seed=7, **{**defaults, **rest})


JOBS: dict[str, Callable[[], Job]] = {
    "mlp": lambda: _job(mlp, _data(12)),
    "residual": lambda: _job(lambda: _Residual().double(), _data(2, 6, 6)),
    "lstm": lambda: _job(lambda: _Lstm().double(), _data(4, 6)),
    "transformer": lambda: _job(lambda: _Transformer().double(), _data(4, 8)),
    "tied": lambda: _job(lambda: _TiedAutoEncoder().double(), _data(12), loss=None, step=_two_heads),
}

DEEP_JOBS: dict[str, Callable[[], Job]] = {  # the same kinds, deep enough for twelve stages
    "mlp": lambda: _job(lambda: _deep_mlp().double(), _data(12)),
    "residual": lambda: _job(lambda: _deep_residual().double(), _data(2, 6, 6)),
    "lstm": lambda: _job(lambda: _Lstm(6).double(), _data(4, 6)),
    "transformer": lambda: _job(lambda: _Transformer(2).double(), _data(4, 8)),
    "tied": lambda: _job(lambda: _DeepTied().double(), _data(12), loss=None, step=_two_heads),
}


class _Bag(nn.Module):
    """An embedding table, of which a batch touches few rows, and a dense head if `head`."""

    def __init__(self, sparse: bool, head: bool) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(900, 5, mode="sum", sparse=sparse)
        self.head = nn.Linear(5, 5) if head else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.words(x))
        return result


def bag(optimizer: Callable[..., torch.optim.Optimizer], sparse: bool = True, head: bool = True) -> Job:
    """Return a job on words, some of which are more common than others."""
    generator = torch.Generator().manual_seed(1)
    words = (torch.rand(SAMPLES, 2, generator=generator).square() * 900).long()
    labels = torch.randint(5, (SAMPLES,), generator=generator)
    return _job(lambda: _Bag(sparse, head).double(), (words, labels), optimizer=optimizer)


SPARSE_JOBS: dict[str, Callable[[], Job]] = {
    "bag-sgd": lambda: bag(partial(torch.optim.SGD, lr=0.5)),
    "bag-adagrad": lambda: bag(partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.1)),
    "bag-sparse-adam": lambda: bag(partial(torch.optim.SparseAdam, lr=0.01), head=False),
}
