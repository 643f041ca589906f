"""The jobs that predictions are judged on; the card was fitted on others, those of `calibration_jobs`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from paceline.training.jobs.job import Job

SAMPLES = 4096


class Last(nn.Module):
    """The last step of a recurrent layer's output."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.body(x)[0][:, -1]
        return result


class Mean(nn.Module):
    """The mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def _job(name: str, model: Callable[[], nn.Module], x: Tensor, batch: int, **rest: Any) -> Job:
    target = torch.randint(10, (len(x),), generator=torch.Generator().manual_seed(3))
    given: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.01), **rest}
    return Job(model, (x, target), nn.CrossEntropyLoss(), batch_size=batch, name=name, device="cpu", **given)


def _dense(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = []
    for first, second in pairwise(widths):
        layers += [nn.Linear(first, second), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def _conv(channels: tuple[int, ...], image: int, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for first, second in pairwise(channels):
        layers.append(nn.Conv2d(first, second, 3, padding=1))
        layers += [nn.BatchNorm2d(second)] if norm else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        image //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * image * image, 10))


def _transformer(width: int, heads: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(16, width), body, Mean(), nn.Linear(width, 10))


def _table(rows: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(rows, width), Mean(), nn.Linear(width, 10))


def _images(colours: int, size: int, samples: int = SAMPLES) -> Tensor:
    return torch.randn(samples, colours, size, size)


def _words(rows: int, each: int) -> Tensor:
    return torch.randint(rows, (SAMPLES, each), generator=torch.Generator().manual_seed(4))


ADAM = {"optimizer": partial(torch.optim.Adam, lr=1e-3)}
MOMENTUM = {"optimizer": partial(torch.optim.SGD, lr=0.01, momentum=0.9)}
JOBS: dict[str, Callable[[], Job]] = {
    "mlp-small-16": lambda: _job("mlp-small-16", partial(_dense, 64, 32), torch.randn(SAMPLES, 64), 16),
    "mlp-tanh-128": lambda: _job(
        "mlp-tanh-128", partial(_dense, 784, 64, 64, act=nn.Tanh), torch.randn(SAMPLES, 784), 128
    ),
    "mlp-wide-256": lambda: _job(
        "mlp-wide-256", partial(_dense, 512, 512, 512), torch.randn(SAMPLES, 512), 256, **ADAM
    ),
    "mlp-1024": lambda: _job("mlp-1024", partial(_dense, 256, 256), torch.randn(SAMPLES, 256), 1024, **MOMENTUM),
    "cnn-64": lambda: _job("cnn-64", partial(_conv, (1, 8, 16), 28), _images(1, 28), 64),
    "cnn-norm-32": lambda: _job(
        "cnn-norm-32", partial(_conv, (3, 16, 32), 32, True), _images(3, 32, 2048), 32, **MOMENTUM
    ),
    "lstm-64": lambda: _job(
        "lstm-64",
        lambda: nn.Sequential(Last(nn.LSTM(24, 48, batch_first=True)), nn.Linear(48, 10)),
        torch.randn(SAMPLES, 20, 24),
        64,
    ),
    "transformer-32": lambda: _job(
        "transformer-32", partial(_transformer, 32, 2, 2), torch.randn(SAMPLES, 24, 16), 32, **ADAM
    ),
    "transformer-128": lambda: _job(
        "transformer-128", partial(_transformer, 48, 4, 1), torch.randn(SAMPLES, 16, 16), 128
    ),
    "embedding-256": lambda: _job("embedding-256", partial(_table, 30_000, 32), _words(30_000, 12), 256),
}

#: The jobs that the planner's models were worked out with; JOBS were looked at once, when these models were final.
FITTED: dict[str, Callable[[], Job]] = {
    "fit-mlp-32": lambda: _job("fit-mlp-32", partial(_dense, 128, 96), torch.randn(SAMPLES, 128), 32),
    "fit-cnn-128": lambda: _job("fit-cnn-128", partial(_conv, (1, 12, 24), 20), _images(1, 20), 128),
    "fit-transformer-64": lambda: _job(
        "fit-transformer-64", partial(_transformer, 64, 4, 1), torch.randn(SAMPLES, 12, 16), 64
    ),
    "fit-embedding-64": lambda: _job("fit-embedding-64", partial(_table, 10_000, 16), _words(10_000, 8), 64, **ADAM),
    "fit-mlp-tanh-256": lambda: _job(
        "fit-mlp-tanh-256", partial(_dense, 400, 200, 100, act=nn.Tanh), torch.randn(SAMPLES, 400), 256, **MOMENTUM
    ),
    "fit-lstm-32": lambda: _job(
        "fit-lstm-32",
        lambda: nn.Sequential(Last(nn.LSTM(16, 64, batch_first=True)), nn.Linear(64, 10)),
        torch.randn(SAMPLES, 12, 16),
        32,
    ),
    "fit-mlp-512": lambda: _job("fit-mlp-512", partial(_dense, 768, 768), torch.randn(SAMPLES, 768), 512, **ADAM),
    "fit-cnn-norm-16": lambda: _job(
        "fit-cnn-norm-16", partial(_conv, (3, 8, 16, 32), 24, True), _images(3, 24), 16, **ADAM
    ),
    "fit-mlp-deep-64": lambda: _job(
        "fit-mlp-deep-64", partial(_dense, 64, 64, 64, 64, 64, act=nn.GELU), torch.randn(SAMPLES, 64), 64
    ),
    "fit-transformer-16": lambda: _job(
        "fit-transformer-16", partial(_transformer, 24, 2, 3), torch.randn(SAMPLES, 10, 16), 16, **ADAM
    ),
}
SETS = FITTED | JOBS
