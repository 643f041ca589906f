"""Trials that compute nothing: python benchmarks/tuning/trivial.py. What one costs, beside Optuna and Ray Tune."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import optuna
from harness import write
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import paceline as pl
from paceline.planning.tuner.trial import Trial

TRIALS = 10_000
RAY_TRIALS = 100


def nothing(trial: Trial) -> float:
    return float((trial["x"] - 0.3) ** 2)


def ours(way: str) -> dict[str, float]:
    """Return milliseconds per trial, without and with the start of the workers, the journal included."""
    with tempfile.TemporaryDirectory() as folder:
        found = pl.tune(
            objective=nothing, space={"x": pl.Float(0, 1)}, search="random", n_trials=TRIALS, executor=way, workers=2,
            folder=folder,
        )  # fmt: skip
    wall, start = found.account.wall, found.account.start
    return {"without_start": 1e3 * wall / TRIALS, "with_start": 1e3 * (wall + start) / TRIALS}


@contextmanager
def scratch() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield folder


STORAGES: dict[str, tuple[int, Callable[[str], Any]]] = {
    "in memory": (TRIALS, lambda folder: None),
    "journal file": (1000, lambda folder: JournalStorage(JournalFileBackend(f"{folder}/j.log"))),
    "sqlite": (400, lambda folder: f"sqlite:///{folder}/s.db"),
}


def by_optuna(name: str) -> float:
    """Return milliseconds per trial."""
    trials, storage = STORAGES[name]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with scratch() as folder:
        study = optuna.create_study(storage=storage(folder), sampler=optuna.samplers.RandomSampler(seed=0))
        begin = time.perf_counter()
        study.optimize(lambda t: (t.suggest_float("x", 0, 1) - 0.3) ** 2, n_trials=trials)
        return 1e3 * (time.perf_counter() - begin) / trials


def by_ray() -> float:
    """Return milliseconds per trial of Ray Tune, once Ray runs."""
    import ray
    from ray import tune

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with scratch() as folder:
        tuner = tune.Tuner(
            lambda config: {"loss": (config["x"] - 0.3) ** 2},
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=RAY_TRIALS, metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        begin = time.perf_counter()
        tuner.fit()
        seconds = time.perf_counter() - begin
    ray.shutdown()
    return 1e3 * seconds / RAY_TRIALS


def main() -> dict[str, Any]:
    found: dict[str, Any] = {"paceline, here": ours("here"), "paceline, two processes": ours("processes")}
    found |= {f"optuna, {name}": by_optuna(name) for name in STORAGES}
    found["ray tune, two processors"] = by_ray()
    return {"milliseconds_per_trial": found, "trials": TRIALS, "ray_trials": RAY_TRIALS}


if __name__ == "__main__":
    figures = main()
    print(json.dumps(figures, indent=1))
    write(figures, "trivial.json")
