"""Tuning beside Optuna: python benchmarks/tuning/run.py dnn|cnn|trivial

dnn, cnn   a grid of learning rates and decays of a built-in job, one epoch each, by `pl.tune` and by Optuna in two
           processes that share a study in SQLite; the same jobs, by PyTorch in one thread each
trivial    trials that compute nothing: what one costs besides
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import optuna
import torch
from record import write

import paceline as pl
from paceline.engines.stepping import SteppedTraining
from paceline.jobs.built_ins import built_in
from paceline.tuner.trial import Trial
from paceline.tuner.varied import configured

HERE = Path(__file__).parent
RATES = [0.005 * 10 ** (2 * n / 7) for n in range(8)]
DECAYS = [0.0, 1e-6, 1e-5, 1e-4]
SPACE = {"lr": RATES, "weight_decay": DECAYS}
WORKERS = 2
TRIVIAL = 10_000


def peer_objective(job: pl.Job, trial: optuna.Trial) -> float:
    """Train one epoch in PyTorch's usual loop, as a script with Optuna does."""
    given = {name: trial.suggest_categorical(name, values) for name, values in SPACE.items()}
    model = job.make_model().train()
    optimizer = configured(job, given).make_optimizer(model, list(model.parameters()))
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


def peer_worker(storage: str, name: str, trials: int, ready: Any, go: Any) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    job = built_in(name)
    study = optuna.load_study(study_name="s", storage=storage)
    ready.release()
    go.wait()
    study.optimize(lambda trial: peer_objective(job, trial), n_trials=trials)


def by_optuna(name: str, trials: int) -> float:
    """Return the seconds for so many trials, from the moment at which both processes have their data."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{folder}/study.db"
        optuna.create_study(study_name="s", storage=storage, sampler=optuna.samplers.GridSampler(SPACE))
        ready, go = context.Semaphore(0), context.Event()
        given = (storage, name, trials // WORKERS, ready, go)
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


def networks(name: str, peer_trials: int) -> dict[str, Any]:
    """Tune a built-in job both ways; of a slow peer only a part is run, and scaled."""
    job = built_in(name).with_(epochs=1, evaluate_every=None, test=None)
    begin = time.perf_counter()
    found = pl.tune(job, SPACE, "grid", metric="train_loss", folder=None)
    ours = time.perf_counter() - begin
    peer = by_optuna(name, peer_trials) * 32 / peer_trials
    return {
        "job": name, "configurations": 32, "ran": found.way, "paceline_seconds": ours,
        "of_that_before": found.account.start,
        "optuna_seconds": peer, "optuna_trials_run": peer_trials, "times_optuna": peer / ours,
        "difference_from_separate": _difference(job, found.trials),
    }  # fmt: skip


def _difference(job: pl.Job, trials: list[Any]) -> float:
    """Return the largest relative difference of a trial's loss from its separate training, over four of them."""
    worst = 0.0
    for trial in trials[::9]:
        alone = SteppedTraining(configured(job, trial.configuration).with_(compute="fused"))
        loss = alone.advance(alone.agenda.updates)
        worst = max(worst, abs(loss - trial.value) / abs(loss))
    return worst


def nothing(trial: Trial) -> float:
    return (trial["x"] - 0.3) ** 2


def trivial() -> dict[str, Any]:
    """Return milliseconds per trial."""
    found: dict[str, Any] = {}
    space = {"x": pl.Float(0, 1)}
    for name, way in (("here", "here"), ("two processes", "processes")):
        with tempfile.TemporaryDirectory() as folder:
            result = pl.tune(
                objective=nothing,
                space=space,
                search="random",
                budget=TRIVIAL,
                trials=way,
                workers=WORKERS,
                folder=folder,
            )
        found[f"paceline, {name}"] = 1e3 * result.account.wall / TRIVIAL
        found[f"paceline, {name}, with the start of the workers"] = (
            1e3 * (result.account.wall + result.account.start) / TRIVIAL
        )
    storages: dict[str, tuple[int, Callable[[str], Any]]] = {
        "in memory": (2000, lambda folder: None),
        "journal file": (
            500,
            lambda folder: optuna.storages.JournalStorage(
                optuna.storages.journal.JournalFileBackend(f"{folder}/j.log")
            ),
        ),
        "sqlite": (200, lambda folder: f"sqlite:///{folder}/s.db"),
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name, (trials, storage) in storages.items():
        with tempfile.TemporaryDirectory() as folder:
            study = optuna.create_study(storage=storage(folder), sampler=optuna.samplers.RandomSampler(seed=0))
            begin = time.perf_counter()
            study.optimize(lambda t: (t.suggest_float("x", 0, 1) - 0.3) ** 2, n_trials=trials)
            found[f"optuna, {name}"] = 1e3 * (time.perf_counter() - begin) / trials
    return {"milliseconds_per_trial": found, "trials": TRIVIAL}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "dnn": lambda: networks("mnist-dnn", 32),
    "cnn": lambda: networks("mnist-cnn", 4),
    "trivial": trivial,
}

if __name__ == "__main__":
    part = sys.argv[1]
    figures = PARTS[part]()
    print(json.dumps(figures, indent=1))
    write(HERE, figures, f"{part}.json")
