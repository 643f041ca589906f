"""What a push costs when an embedding table travels by rows, and when it travels whole; and what that makes of a run.

The same model, data and optimizer under Downpour on two workers, with sparse=True and with sparse=False, run in turn,
round after round. A push is the time from its start to its end in the trace, without the wait for the lock.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

import paceline as pl
from paceline.errors import JobWarning
from paceline.runtime.runs.trace import Kind

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import in_turn, median, write

ROWS, COLUMNS, BATCH, WORDS, SAMPLES = 100_000, 32, 100, 4, 50_000
ROUNDS = 5
UPDATES = {True: 1000, False: 100}  # by rows; whole: an update takes so much longer
OPTIMIZERS = {"SGD": partial(torch.optim.SGD, lr=0.1), "Adagrad": partial(torch.optim.Adagrad, lr=0.01)}


def network(sparse: bool) -> nn.Module:
    table = nn.EmbeddingBag(ROWS, COLUMNS, mode="mean", sparse=sparse)
    return nn.Sequential(table, nn.Linear(COLUMNS, 64), nn.Tanh(), nn.Linear(64, 10))


def measure(optimizer: str, sparse: bool) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    data = (
        torch.randint(ROWS, (SAMPLES, WORDS), generator=generator),
        torch.randint(10, (SAMPLES,), generator=generator),
    )
    job = pl.Job(
        partial(network, sparse), data, nn.CrossEntropyLoss(), optimizer=OPTIMIZERS[optimizer], batch_size=BATCH,
        epochs=10,
    )  # fmt: skip
    run = pl.train(job, "downpour", workers=2, folder=None, max_updates=UPDATES[sparse])
    rows = run.trace.of_kind(Kind.APPLY)
    found = {
        "microseconds_per_push": float(np.median(rows["end"] - rows["start"] - rows["waited"])) / 1e3,
        "kilobytes_per_push": float(rows["bytes"].mean()) / 1e3,
        "samples_per_second": run.summary()["samples_per_second"],
    }
    print(f"{optimizer}, {'rows' if sparse else 'whole'}: {found}", flush=True)
    return found


def main() -> None:
    warnings.simplefilter("ignore", JobWarning)  # it advises what is measured here
    ways = {
        f"{optimizer}, {'rows' if sparse else 'whole'}": partial(measure, optimizer, sparse)
        for optimizer in OPTIMIZERS
        for sparse in (True, False)
    }
    medians = {
        name: {figure: median((each[figure] for each in rounds), 1) for figure in rounds[0]}
        for name, rounds in in_turn(ways, ROUNDS).items()
    }
    write({"table": [ROWS, COLUMNS], "batch": BATCH, "words": WORDS, "medians": medians})


if __name__ == "__main__":
    main()
