"""Tuning beside Optuna: python benchmarks/tuning/run.py dnn|cnn|mixed|transformer-16|transformer-64 [--rounds 3]

The same jobs by `paceline.tune` and by PyTorch's usual loop in Optuna's trials, in two processes with one thread each
that share a study in SQLite. Both take turns. Ours includes everything from the call to its result, and of the first
round also compiling, with an empty cache; Optuna's time begins when both processes have their data. Of a slow peer only
some trials are run, and the time is scaled.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import optuna
import torch
from harness import write
from jobs import DECAYS, PARTS, RATES

import paceline as pl
from paceline.errors import JobError
from paceline.planning.tuner.trial import Trial
from paceline.runtime.engines.stepping import SteppedTraining

WORKERS = 2


def train(job: pl.Job) -> float:
    """Train an epoch in PyTorch's usual loop."""
    model = job.make_model().train()
    optimizer = job.make_optimizer(model, list(model.parameters()))
    x, y = job.data
    order = torch.randperm(len(x))
    total = 0.0
    for at in range(0, len(x), job.batch_size):
        batch = order[at : at + job.batch_size]
        optimizer.zero_grad()
        loss = job.loss(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total


def peer_worker(storage: str, part: str, trials: int, ready: Any, go: Any) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    make = PARTS[part][0]
    study = optuna.load_study(study_name="s", storage=storage)
    train(make(optuna.trial.FixedTrial(_middle(part))))
    ready.release()
    go.wait()
    study.optimize(lambda trial: train(make(trial)), n_trials=trials)


def _middle(part: str) -> dict[str, Any]:
    """A configuration with which a process warms up."""
    if part in ("dnn", "cnn"):
        return {"lr": RATES[0], "weight_decay": DECAYS[0]}
    return {"net": "narrow", "lr": 1e-3, "momentum": 0.5, "weight_decay": 1e-6}


def by_optuna(part: str, trials: int) -> float:
    """Return the seconds for so many trials, from the moment at which both processes have their data."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{folder}/study.db"
        optuna.create_study(study_name="s", storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
        ready, go = context.Semaphore(0), context.Event()
        given = (storage, part, trials // WORKERS, ready, go)
        team = [context.Process(target=peer_worker, args=given) for _ in range(WORKERS)]
        for each in team:
            each.start()
        for _ in team:
            ready.acquire()
        begin = time.perf_counter()
        go.set()
        for each in team:
            each.join()
        return time.perf_counter() - begin


def ours(part: str) -> tuple[float, Any]:
    """Return the seconds from the call to its result, and the tuning."""
    make, search, trials, _ = PARTS[part]
    begin = time.perf_counter()
    found = pl.tune(make, None, search, n_trials=trials, metric="train_loss", folder=None)
    return time.perf_counter() - begin, found


def main(part: str, rounds: int) -> dict[str, Any]:
    make, _, trials, run = PARTS[part]
    make(Trial(0, _middle(part), 0, 1))  # so that both have their data
    mine, theirs = [], []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PACELINE_CACHE"] = cache
        for _ in range(rounds):
            seconds, found = ours(part)
            mine.append(seconds)
            theirs.append(by_optuna(part, run) * trials / run)
        return {
            "part": part, "configurations": trials, "ran": found.way, "because": found.why,
            "seconds_first": mine[0], "seconds": mine[1:], "optuna_seconds": theirs, "optuna_trials_run": run,
            "times_optuna_first": statistics.median(theirs) / mine[0],
            "times_optuna": statistics.median(theirs) / statistics.median(mine[1:]),
            "account": found.account.as_dict(), "difference_from_separate": _difference(make, found),
        }  # fmt: skip


def _difference(make: Any, found: Any) -> float:
    """Return the largest relative difference of a trial's loss from its separate training, over four of them."""
    worst = 0.0
    for trial in found.trials[:: max(1, len(found.trials) // 4)]:
        job = make(Trial(trial.number, trial.configuration, 0, 1))
        try:
            alone = SteppedTraining(job.with_(compute="fused"))
        except JobError:  # there are no kernels
            alone = SteppedTraining(job)
        loss = alone.advance(alone.agenda.updates)
        worst = max(worst, abs(loss - trial.value) / abs(loss))
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    figures = main(given.part, given.rounds)
    print(json.dumps(figures, indent=1))
    write(figures, f"{given.part}.json")
