"""Jobs whose workers stop at a certain step until a test lets them go on, and steps that kill."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paceline as pl
from paceline.interfaces.testing.killing import DiesInMidUpdate

BATCH = 11  # the last batch of an epoch has 9 samples: up to 4 workers have chunks of unequal sizes, and none of one
SAMPLES, PASSES = 240, 20  # passes of a worker before it stops; the checks before a start make fewer


def is_late(checkpoint: Path) -> bool:
    """Whether a checkpoint is one that tests wait for."""
    return checkpoint.name.isdigit() and int(checkpoint.name) >= 15


class Net(nn.Module):
    """A small network with batch-norm and dropout, whose training passes after the first few wait for a file to go."""

    passes = 0

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.body = nn.Sequential(
            nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 5)
        ).double()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            Net.passes += 1
            if Net.passes >= PASSES and (self.folder / "hold").exists() and self._is_due():
                (self.folder / f"held-{os.getpid()}").touch()
                while (self.folder / "hold").exists():
                    time.sleep(0.002)
        result: Tensor = self.body(x)
        return result

    def _is_due(self) -> bool:
        """Whether a worker stops now: at once or, if the file says so, after a checkpoint; until then it is slow.

        After some passes it is much slower, since a disk may need seconds for a checkpoint.
        """
        if (self.folder / "hold").read_text() != "checkpoint":
            return True
        time.sleep(0.02 if Net.passes < 4 * PASSES else 0.5)
        return any(is_late(path) for path in self.folder.glob("*runs/*/checkpoints/*"))


def job(folder: Path, **changes: Any) -> pl.Job:
    """Return a job in float64 whose state, batches and chance all matter."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (SAMPLES,), generator=generator)
    when = folder / "die"
    settings: dict[str, Any] = {"lr": 0.05, "momentum": 0.9}
    optimizer: Any = partial(torch.optim.SGD, **settings)
    if when.exists():
        optimizer = partial(DiesInMidUpdate, when=str(when), spared=15, **settings)
    given: dict[str, Any] = {
        "model": partial(Net, str(folder)),
        "data": (x, y),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": optimizer,
        "batch_size": BATCH,
        "epochs": 3,
        "test": (x[:50], y[:50]),
    }
    return pl.Job(**{**given, **changes})
