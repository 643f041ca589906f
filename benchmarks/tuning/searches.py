"""What searches find: python benchmarks/tuning/searches.py asha|pbt [--seeds 10] [--job mnist-dnn]

asha   the full grid of 36 configurations, 27 epochs each, and ASHA on the same grid: the best test accuracy of both,
       and their seconds
pbt    population-based training and random search with as many members and epochs: the difference, with its interval

The job has 4,000 of its training and 5,000 of its test samples. All trials are run in stacks. ASHA's grace period is
the default, its reduction factor was chosen on mnist-cnn, among 4, 5 and 6. Seeds that the result file has are not run
again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import interval, read, write

import paceline as pl
from paceline.training.jobs.built_ins import built_in

SPACE = {"lr": pl.Float(0.003, 3.0, log=True, count=9), "weight_decay": pl.Float(1e-6, 1e-3, log=True, count=4)}
EPOCHS = 27
ASHA = "asha:sampler=grid,reduction_factor=5"
POPULATION, INTERVAL = 12, 3
SEARCHED = {"asha": ASHA, "pbt": f"pbt:perturbation_interval={INTERVAL}"}
FIRST = 100  # the first seed
TRAINED, TESTED = 4_000, 5_000


def best(job: pl.Job, search: str, seed: int, budget: int | None) -> dict[str, Any]:
    """Return the best test accuracy in points and the seconds, those before the first trial included."""
    before = time.perf_counter()
    found = pl.tune(
        job.with_(seed=seed), SPACE, search, metric="test_accuracy", n_trials=budget, seed=seed, executor="stacked",
        folder=None,
    )  # fmt: skip
    assert found.best is not None
    assert found.best.value is not None
    return {
        "best": 100 * found.best.value, "seconds": time.perf_counter() - before, "of": found.best.configuration,
        "epochs": sum(trial.step for trial in found.trials),
    }  # fmt: skip


def asha(job: pl.Job, seed: int) -> dict[str, Any]:
    full = best(job, "grid", seed, None)
    halved = best(job, ASHA, seed, None)
    return {
        "seed": seed, "grid": full, "asha": halved, "points_below": full["best"] - halved["best"],
        "share_of_time": halved["seconds"] / full["seconds"],
    }  # fmt: skip


def pbt(job: pl.Job, seed: int) -> dict[str, Any]:
    population = best(job, SEARCHED["pbt"], seed, POPULATION)
    drawn = best(job, "random", seed, POPULATION)
    return {"seed": seed, "pbt": population, "random": drawn, "points_above": population["best"] - drawn["best"]}


def main(part: str, name: str, seeds: int) -> None:
    job = built_in(name).with_(epochs=EPOCHS, evaluate_every=None)
    data, test = (tuple(part[:many] for part in pair) for pair, many in ((job.data, TRAINED), (job.test, TESTED)))
    job = job.with_(data=data, test=test)
    rows = known(part, name)
    for seed in range(FIRST, FIRST + seeds):
        if all(row["seed"] != seed for row in rows):
            rows.append({"asha": asha, "pbt": pbt}[part](job, seed))
            print(rows[-1], flush=True)
            if len(rows) > 1:
                write(summary(part, name, rows), f"{part}.json")


def known(part: str, name: str) -> list[dict[str, Any]]:
    """Return the seeds that were run."""
    found = read(f"{part}.json")
    return found["rows"] if found.get("job") == name and found.get("search") == SEARCHED[part] else []


def span(values: list[float]) -> dict[str, float]:
    """Return the mean of paired differences with its 95% interval."""
    mean, half = interval(values)
    return {"mean": mean, "low": mean - half, "high": mean + half}


def summary(part: str, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"job": name, "search": SEARCHED[part], "rows": rows}
    if part == "pbt":
        return found | {"points_above": span([row["points_above"] for row in rows])}
    below, shares = [row["points_below"] for row in rows], [row["share_of_time"] for row in rows]
    return found | {
        "points_below": span(below), "largest_points_below": max(below), "share_of_time": span(shares),
        "largest_share_of_time": max(shares),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("asha", "pbt"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--job", default="mnist-dnn")
    given = parser.parse_args()
    main(given.part, given.job, given.seeds)
