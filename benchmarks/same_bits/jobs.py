"""The jobs that the recorded runs train: small ones, each with something of its own. They need no download."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import paceline as pl

BUILT_IN = "paceline.training.jobs"  # where `built_in(name)` is; all else comes from the library's face
SAMPLES = 61  # odd, so that nothing divides
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def tensors(*shape: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, *shape, generator=generator), torch.randint(classes, (SAMPLES,), generator=generator)


def job(model: Callable[[], nn.Module], data: Any, **rest: Any) -> pl.Job:
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": SGD, "device": "cpu", "batch_size": 14}
    return pl.Job(model=model, data=data, epochs=4, seed=7, **{**given, **rest})


def built_in(name: str, **rest: Any) -> pl.Job:
    """A job of the command line's, with few of its samples, and evaluated twice."""
    whole: pl.Job = importlib.import_module(BUILT_IN).built_in(name)
    few = {"data": tuple(t[:128].clone() for t in whole.data), "test": tuple(t[:32].clone() for t in whole.test)}
    return whole.with_(**few, batch_size=24, evaluate_every=2, device="cpu", origin="", **rest)


def mlp() -> nn.Module:
    """Deep enough for six stages."""
    layers = [layer for _ in range(5) for layer in (nn.Linear(12, 12), nn.Tanh(), nn.Dropout(0.1))]
    return nn.Sequential(*layers, nn.Linear(12, 5))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5),
    )  # fmt: skip


class Recurrent(nn.Module):
    """Three layers, between which it can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 8, num_layers=3, dropout=0.2, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.rnn(x)[0].mean(1))
        return scores


class Bounded(nn.Module):
    """A cell that keeps two hidden states of five."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = pl.ThroughTime(nn.GRUCell(6, 8), memory=2), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.rnn(x.transpose(0, 1))[0][-1])
        return scores


class Tied(nn.Module):
    """Encoder and decoder share one matrix; a second head classifies; one parameter never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.classify = nn.Linear(12, 7, bias=False), nn.Linear(7, 5)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.encode(x))
        return hidden @ self.encode.weight, self.classify(hidden)


def two_heads(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    rebuilt, scores = model(x)
    return F.mse_loss(rebuilt, x) + F.cross_entropy(scores, y)


class Words(nn.Module):
    """A table of words, of which a batch touches few, and a dense head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(900, 5, mode="sum", sparse=True), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.words(x))
        return scores


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Every sample comes with chance of its own."""

    def __init__(self) -> None:
        self.x, self.y = tensors(2, 6, 6)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.1 * torch.randn(2, 6, 6), self.y[index]


def flipped(batch: Any) -> Any:
    x, y = batch
    return torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x), y


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    groups = [{"params": parameters[:2], "lr": 0.05}, {"params": parameters[2:], "weight_decay": 0.01}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).float().mean()


def with_nan() -> tuple[Tensor, Tensor]:
    x, y = tensors(12)
    x[20] = float("nan")
    return x, y


def words(optimizer: Callable[..., torch.optim.Optimizer]) -> pl.Job:
    generator = torch.Generator().manual_seed(1)
    drawn = (torch.rand(SAMPLES, 2, generator=generator).square() * 900).long()
    return job(Words, (drawn, tensors(1)[1]), optimizer=optimizer)


JOBS: dict[str, Callable[[], pl.Job]] = {
    "mnist-dnn": lambda: built_in("mnist-dnn"),
    "mnist-cnn": lambda: built_in("mnist-cnn"),
    # As the built-in job was when runs were recorded.
    "digits": lambda: built_in("digits").with_(optimizer=partial(torch.optim.SGD, lr=0.1), lr_scheduler=None),
    "cifar-resnet": lambda: built_in("cifar-resnet"),
    "tiny-transformer": lambda: built_in("tiny-transformer"),
    "mlp": lambda: job(mlp, tensors(12)),
    "mlp-adam": lambda: job(mlp, tensors(12), optimizer=partial(torch.optim.Adam, lr=0.01)),
    "mlp-double": lambda: job(lambda: mlp().double(), (tensors(12)[0].double(), tensors(12)[1])),
    "cnn": lambda: job(cnn, tensors(2, 6, 6), test=tensors(2, 6, 6), metrics={"right": accuracy}),
    "augmented": lambda: job(cnn, Noisy(), batch_transform=flipped),
    "loaded": lambda: job(cnn, Noisy(), num_workers=1, optimizer=partial(torch.optim.Adagrad, lr=0.01)),
    "recurrent": lambda: job(Recurrent, tensors(5, 6)),
    "through-time": lambda: job(Bounded, tensors(5, 6)),
    "step": lambda: job(Tied, tensors(12), loss=None, step=two_heads),
    "words": lambda: words(partial(torch.optim.SGD, lr=0.5)),
    "words-adagrad": lambda: words(partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.1)),
    "settings": lambda: job(
        mlp, tensors(12), optimizer=two_groups, accumulate_grad_batches=2, shuffle=False, gradient_clip_norm=0.5,
        lr_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5),
    ),
    "weighted": lambda: job(
        mlp, tensors(12), loss=nn.CrossEntropyLoss(reduction="sum"), optimizer=partial(torch.optim.SGD, lr=0.01),
        loss_denominator=lambda batch: 1.0,
    ),
    "bfloat16": lambda: job(mlp, tensors(12), precision="bf16-mixed"),
    "skips-nan": lambda: job(mlp, with_nan(), on_nan="skip"),
}  # fmt: skip
