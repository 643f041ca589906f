"""Small float32 jobs: dropout and clipping, batch norm and augmentation, attention, recurrence, generated code."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paceline as pl

SAMPLES = 125  # an epoch's last batch has 5 samples: fewer than there are chunks
DEATHS = (12, 16, 22)  # the chunks that a worker computes before it dies
ADAM = partial(torch.optim.Adam, lr=0.01)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def tensors(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, *shape, generator=generator), torch.randint(5, (SAMPLES,), generator=generator)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(6, 16), nn.Linear(16, 5)
        self.body = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.enter(x)).mean(1))
        return scores


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(6, 12, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x)[0][:, -1])
        return scores


PERIOD = 10_000  # microseconds, of a quota
FIRST_SAMPLE = tensors(784)[0][0]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 5))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(144, 5)
    )


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 5))


class Mortal:
    """Leaves batches as they are, or flips half of them.

    The first worker that computes its twelfth chunk, and finds the file `die-12`, dies.
    """

    def __init__(self, folder: str = "", flips: bool = False) -> None:
        self.folder, self.flips, self.chunks, self.parent = folder, flips, 0, os.getpid()

    def __call__(self, batch: Any) -> Any:
        self.chunks += 1
        if self.folder and self.chunks in DEATHS and os.getpid() != self.parent:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, f"die-{self.chunks}"))
                os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch
        return (torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x) if self.flips else x), y


class Pace:
    """Gives the workers of a job with `shuffle=False` these shares of a core, by quotas of the group `folder`.

    The first worker has the first chunk of a batch: it is told by the data's first sample.
    """

    def __init__(self, folder: Path, quotas: tuple[float, float]) -> None:
        self.folder, self.quotas, self.parent = folder, quotas, os.getpid()
        self.pending = True

    def __call__(self, batch: Any) -> Any:
        if self.pending and os.getpid() != self.parent:
            self.pending = False
            worker = int(not torch.equal(batch[0][0], FIRST_SAMPLE))
            group = self.folder / str(worker)
            group.mkdir(exist_ok=True)
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(round(PERIOD * self.quotas[worker])))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        return batch


def job(model: Any, *shape: int, **rest: Any) -> pl.Job:
    given = {"loss": nn.CrossEntropyLoss(), "optimizer": SGD, "device": "cpu", "batch_size": 20, "epochs": 2}
    return pl.Job(model=model, data=tensors(*shape), seed=5, **{**given, **rest})


def wide_job(updates: int, transform: Pace | None = None) -> pl.Job:
    """Return a job of one batch an epoch, always in the same order."""
    return job(wide, 784, batch_size=SAMPLES, shuffle=False, epochs=updates, batch_transform=transform)


JOBS = {
    "mlp": lambda folder="": job(mlp, 12, gradient_clip_norm=0.1, batch_transform=Mortal(folder)),
    "cnn": lambda folder="": job(cnn, 2, 6, 6, batch_transform=Mortal(folder, flips=True)),
    "transformer": lambda folder="": job(
        Transformer, 5, 6, optimizer=ADAM, accumulate_grad_batches=2, batch_transform=Mortal(folder)
    ),
    "lstm": lambda folder="": job(Lstm, 5, 6, optimizer=ADAM, batch_transform=Mortal(folder)),
    "fused": lambda folder="": job(mlp, 12, compute="fused"),
}
