"""What all programs of this folder train, and the clock that they are timed by."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

BATCH = 100  # samples of one worker
HIDDEN, UPDATES = int(os.environ["HIDDEN"]), int(os.environ["UPDATES"])
SGD = partial(torch.optim.SGD, lr=0.05, weight_decay=1e-5)
Batch = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    """Return 784-h-h-10 with tanh and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, HIDDEN), nn.Tanh(), nn.Dropout(0.1),
        nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Dropout(0.1),
        nn.Linear(HIDDEN, 10),
    )  # fmt: skip


def samples() -> Batch:
    """Return ten thousand samples in the format of MNIST."""
    draw = torch.Generator().manual_seed(0)
    return torch.rand(10_000, 784, generator=draw), torch.randint(0, 10, (10_000,), generator=draw)


class Batches:
    """Batches of tensors that lie in memory, so that no data loader is measured."""

    def __len__(self) -> int:
        return UPDATES

    def __iter__(self) -> Iterator[Batch]:
        x, y = samples()
        order = torch.randperm(len(x))
        for update in range(UPDATES):
            at = update * BATCH % (len(x) - BATCH)
            chosen = order[at : at + BATCH]
            yield x.index_select(0, chosen), y.index_select(0, chosen)


class Clock:
    """Times the updates after the first fifth; one process has one."""

    def __init__(self) -> None:
        self.updates, self.began = 0, 0.0

    def tick(self) -> None:
        """Count one update; after the last write the seconds of each to the file that `run.py` reads."""
        self.updates += 1
        if self.updates == UPDATES // 5:
            self.began = time.perf_counter()
        elif self.updates == UPDATES:
            each = (time.perf_counter() - self.began) / (UPDATES - UPDATES // 5)
            Path(os.environ["FOUND"]).write_text(json.dumps(each))
