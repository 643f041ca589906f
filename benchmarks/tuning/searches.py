"""What searches find: python benchmarks/tuning/searches.py asha|pbt [--seeds 10] [--job mnist-dnn]

asha   the full grid of 36 configurations, 27 epochs each, and ASHA with 36 random ones of the same space: the best test
       accuracy of both, and their seconds of the processor
pbt    population-based training and random search with as many members and epochs: the difference, with its interval

The job has 4,000 of its training and 5,000 of its test samples. All trials are run in stacks; PyTorch has one thread.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from record import write
from scipy import stats

import paceline as pl
from paceline.jobs.built_ins import built_in

HERE = Path(__file__).parent
SPACE = {"lr": pl.Float(0.003, 3.0, log=True, count=9), "weight_decay": pl.Float(1e-6, 1e-3, log=True, count=4)}
MEMBERS, EPOCHS = 36, 27
POPULATION, INTERVAL = 12, 3
FIRST = 100  # the first seed
TRAINED, TESTED = 4_000, 5_000


def best(job: pl.Job, search: str, seed: int, budget: int | None) -> dict[str, Any]:
    """Return the best test accuracy in points and the seconds, those before the first trial included."""
    before = time.process_time()
    found = pl.tune(
        job.with_(seed=seed), SPACE, search, metric="test_accuracy", budget=budget, seed=seed, trials="stacked",
        folder=None,
    )  # fmt: skip
    assert found.best is not None
    assert found.best.value is not None
    return {
        "best": 100 * found.best.value, "processor_seconds": time.process_time() - before,
        "seconds": found.account.wall + found.account.start, "of": found.best.configuration,
        "epochs": sum(trial.step for trial in found.trials),
    }  # fmt: skip


def asha(job: pl.Job, seed: int) -> dict[str, Any]:
    full = best(job, "grid", seed, None)
    halved = best(job, "asha", seed, MEMBERS)
    return {
        "seed": seed, "grid": full, "asha": halved, "points_below": full["best"] - halved["best"],
        "share_of_time": halved["processor_seconds"] / full["processor_seconds"],
    }  # fmt: skip


def pbt(job: pl.Job, seed: int) -> dict[str, Any]:
    population = best(job, f"pbt:perturbation_interval={INTERVAL}", seed, POPULATION)
    drawn = best(job, "random", seed, POPULATION)
    return {"seed": seed, "pbt": population, "random": drawn, "points_above": population["best"] - drawn["best"]}


def interval(values: list[float]) -> dict[str, float]:
    """Return the mean of paired differences with its 95% interval by Student's t."""
    mean = statistics.fmean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def main(part: str, name: str, seeds: int) -> dict[str, Any]:
    job = built_in(name).with_(epochs=EPOCHS, evaluate_every=None)
    data, test = (tuple(part[:many] for part in pair) for pair, many in ((job.data, TRAINED), (job.test, TESTED)))
    job = job.with_(data=data, test=test)
    torch.set_num_threads(1)
    rows = []
    for seed in range(FIRST, FIRST + seeds):
        rows.append({"asha": asha, "pbt": pbt}[part](job, seed))
        print(rows[-1], flush=True)
    return summary(part, name, rows)


def summary(part: str, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"job": name, "rows": rows}
    if part == "pbt":
        return found | {"points_above": interval([row["points_above"] for row in rows])}
    below, shares = [row["points_below"] for row in rows], [row["share_of_time"] for row in rows]
    return found | {
        "points_below": interval(below), "largest_points_below": max(below), "share_of_time": interval(shares),
        "largest_share_of_time": max(shares),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("asha", "pbt"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--job", default="mnist-dnn")
    given = parser.parse_args()
    write(HERE, main(given.part, given.job, given.seeds), f"{given.part}.json")
