"""What a checkpoint every 100 updates costs: a run with them beside one without, in turn; medians of the ratios."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.training.jobs.built_ins import IdxMissing
from paceline.training.jobs.loading import load_job

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import in_turn, median, write

EVERY = 100


def wide() -> nn.Module:
    """A million parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 840), nn.Tanh(), nn.Linear(840, 400), nn.Tanh(), nn.Linear(400, 10)
    )


def jobs() -> dict[str, tuple[pl.Job, int]]:
    """Each with the updates of a run, which take some seconds."""
    small = load_job("mnist-dnn").with_(epochs=1000, test=None, evaluate_every=None)
    momentum = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    return {
        "mnist-dnn": (small, 6000),
        "1M parameters, momentum": (small.with_(model=wide, optimizer=momentum), 1000),
    }


def seconds(job: pl.Job, plan: str, updates: int, every: int | None) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:  # a disk, where /tmp may be memory
        run = pl.train(job, plan, folder=folder, max_updates=updates, checkpoint_every=every)
        return float(run.summary()["seconds"])


def measure(job: pl.Job, plan: str, updates: int, rounds: int) -> dict[str, Any]:
    """Rounds of one run with and one without, each first in turn."""
    ways = {every: partial(seconds, job, plan, updates, every) for every in (EVERY, None)}
    took = in_turn(ways, rounds, warm_up=1, to_and_fro=True)
    ratios = [checkpointed / plain for checkpointed, plain in zip(took[EVERY], took[None], strict=True)]
    return {
        "updates": updates,
        "seconds_without": median(took[None], 3),
        "cost": round(median(ratios) - 1, 4),
        "quartiles": [round(q - 1, 4) for q in statistics.quantiles(ratios, n=4)[::2]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--plans", default="sequential,ring:workers=2,downpour:workers=2")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore", IdxMissing)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, (job, updates) in jobs().items():
        for plan in options.plans.split(";" if ";" in options.plans else ",") if options.only in name else ():
            found[f"{name}, {plan}"] = figures = measure(job, plan, updates, options.rounds)
            print(f"{name}, {plan}: {figures}", flush=True)
    write({"every": EVERY, "rounds": options.rounds, "runs": found})


if __name__ == "__main__":
    main()
