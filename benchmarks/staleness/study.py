"""What is studied: the jobs, the worlds, the methods, and one training of any of them. `run.py` does it all."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

import paceline as pl
from paceline.errors import JobWarning
from paceline.plans.plan import Plan
from paceline.runtime.engines.setup import set_up
from paceline.runtime.engines.virtual import simulate
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.payload import Payload
from paceline.training.jobs.built_ins import patterns
from paceline.training.jobs.loading import load_job

TUNING_SEEDS, SEEDS = (1000, 1001, 1002), tuple(range(10))
EVERY = 10  # local steps between two meetings, of all methods with local steps
EVALUATIONS = 15  # on the way, of a reported training


@dataclass(frozen=True)
class Study:
    """A job cut to a size that can be trained more than a thousand times."""

    name: str
    fit: int  # samples trained on
    held: int  # samples kept for tuning: never trained on, never reported
    epochs: int
    batch: int  # samples of one worker's step
    workers: tuple[int, ...]
    tuned_at: tuple[int, ...]  # of these; between two of them, numbers are between theirs in equal ratios
    seeds: int
    rates: tuple[float, ...]  # learning rates tried first, from the smallest
    momentum: float
    decay: float  # weight decay
    target: float  # test accuracy whose time is taken
    finer: tuple[float, ...]  # last trials: the best rate times and by 2 to these powers


STUDIES = {
    study.name: study
    for study in (
        Study("mnist-dnn", 16_000, 5_000, 2, 16, (4, 8, 16, 32), (4, 32), 10,
              (0.001, 0.004, 0.016, 0.064, 0.256, 1.024), 0.0, 1e-5, 0.70, (1.0, 0.5)),
        Study("cifar-resnet", 2_000, 1_000, 3, 16, (8,), (8,), 5,
              (0.0001, 0.0005, 0.002, 0.008, 0.032, 0.128), 0.9, 0.0, 0.30, (1.0,)),
    )
}  # fmt: skip

# A worker is a machine of its own: a millisecond a sample, 100 microseconds for a push at the server, a network of
# 10 Gbit/s. The seed of a training is also its world's.
WORLDS = {
    "equal": pl.World(compute=1e-3, jitter=0.1, update=1e-4, latency=5e-5, bandwidth=1.25e9),
    "skewed": pl.World(
        compute=1e-3, speeds=(1.0, 1.0, 1.0, 1 / 3) * 8, jitter=0.1, straggle=(0.02, 10.0),
        update=1e-4, latency=5e-5, bandwidth=1.25e9,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A row of the tables. `number` is the method's own, tuned beside the learning rate; the first is the published."""

    plan: str
    number: str = ""
    tried: tuple[float, ...] = ()
    per_workers: bool = False  # the numbers are divided by the number of workers
    options: str = ""
    like: str = ""  # not tuned: the learning rate tuned for this other method, the number as published
    beyond: str = ""  # tuned in a grid: this other method's rate and larger ones, times all numbers; by the worst of
    # three seeds, since one seed alone chooses the brink
    worlds: tuple[str, ...] = ("equal", "skewed")

    def text(self, workers: int, own: float | None) -> str:
        parts = [self.options] if self.options else []
        parts += [f"workers={workers}"] if workers > 1 else []
        parts += [f"{self.number}={own}"] if own is not None else []
        return f"{self.plan}:{','.join(parts)}" if parts else self.plan

    def numbers(self, workers: int) -> tuple[float, ...]:
        return tuple(n / workers for n in self.tried) if self.per_workers else self.tried


METHODS = {
    "sequential": Method("sequential"),
    "ring": Method("ring"),
    "downpour": Method("downpour"),
    "ssp": Method("ssp", options="bound=1"),
    "dc_asgd constant": Method("dc_asgd", "lam", (0.04, 20.0, 200.0, 2000.0), options="mode=constant"),
    "dc_asgd adaptive": Method("dc_asgd", "lam", (2.0, 0.5, 8.0, 32.0), options="mode=adaptive"),
    "hogwild": Method("hogwild"),
    "easgd": Method("easgd", "spring", (0.9, 0.7, 0.5, 0.25), per_workers=True, options=f"every={EVERY}"),
    "easgd asynchronous": Method(
        "easgd", "spring", (0.9, 2.0, 4.0, 0.45), per_workers=True, options=f"mode=asynchronous,every={EVERY}"
    ),
    "local_sgd": Method("local_sgd", options=f"every={EVERY}"),
    "parallel_sgd": Method("parallel_sgd"),
    "diloco": Method("diloco", "rate", (0.7, 0.1, 0.3, 1.0), options=f"every={EVERY}"),
    "diloco asynchronous": Method(
        "diloco", "rate", (0.7, 0.1, 0.3, 1.0), options=f"mode=asynchronous,every={EVERY}"
    ),
    "gossip": Method("gossip"),
    # Compensation switched on and nothing else changed:
    "dc_asgd constant, as downpour": Method(
        "dc_asgd", "lam", (0.04,), options="mode=constant", like="downpour", worlds=("equal",)
    ),
    "dc_asgd adaptive, as downpour": Method(
        "dc_asgd", "lam", (2.0,), options="mode=adaptive", like="downpour", worlds=("equal",)
    ),
    # Compensation strong enough to be felt, and rates that are too large for Downpour:
    "dc_asgd constant, larger rates": Method(
        "dc_asgd", "lam", (20.0, 200.0, 600.0, 2000.0), options="mode=constant", beyond="downpour", worlds=("equal",)
    ),
    "dc_asgd adaptive, larger rates": Method(
        "dc_asgd", "lam", (2.0, 8.0, 32.0, 64.0), options="mode=adaptive", beyond="downpour", worlds=("equal",)
    ),
}  # fmt: skip


class ToZero:
    """The learning rate falls in a straight line to zero over the training, however many workers share it."""

    def __init__(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        self.groups, self.updates, self.done = optimizer.param_groups, updates, 0
        self.first = [group["lr"] for group in self.groups]

    def step(self) -> None:
        self.done += 1
        for group, rate in zip(self.groups, self.first, strict=True):
            group["lr"] = rate * max(0.0, 1 - self.done / self.updates)


_data: dict[str, Any] = {}


def data_of(study: Study) -> tuple[pl.Job, Any, Any, Any]:
    """(the job, what is trained on, what is tuned on, what is tested on)"""
    if study.name not in _data:
        job = load_job(study.name)
        (x, y), test = (job.data, job.test)
        if study.name == "cifar-resnet":
            (x, y), test = patterns((study.fit + study.held) * 5 // 4, (3, 32, 32), 10, 4.0)
        held = x[len(x) - study.held :], y[len(y) - study.held :]
        _data[study.name] = job, (x[: study.fit], y[: study.fit]), held, test
    return _data[study.name]


def job_for(study: Study, plan: Plan, rate: float, seed: int, tuning: bool) -> pl.Job:
    """Every worker's step sees `batch` samples under every method, and all methods see the same number of samples."""
    job, fit, held, test = data_of(study)
    batch = study.batch * plan.parts
    updates = -(-study.fit // batch) * study.epochs
    averaging = getattr(plan.method, "averaging", None)
    own = averaging.every if averaging else 1  # between two averages there is no common result
    evaluate = max(own, round(updates / EVALUATIONS / own) * own) if own else updates
    optimizer = partial(torch.optim.SGD, lr=rate, momentum=study.momentum, weight_decay=study.decay)
    return job.with_(
        data=fit, test=held if tuning else test, batch_size=batch, epochs=study.epochs, seed=seed,
        optimizer=optimizer, lr_scheduler=partial(ToZero, updates=updates),
        evaluate_every=10**9 if tuning else evaluate,
    )  # fmt: skip


def train(study: Study, method: Method, workers: int, rate: float, own: float | None, seed: int) -> dict[str, Any]:
    """One training in the world of equal speeds, scored on what is held out: a trial."""
    plan = Plan.parse(method.text(workers, own))
    job = job_for(study, plan, rate, seed, tuning=True)
    run = _run(job, plan, replace(WORLDS["equal"], seed=seed))
    return {"rate": rate, "own": own, "error": _error(run.history[-1])}


def report(
    study: Study, method: Method, workers: int, rate: float, own: float | None, seed: int, worlds: tuple[str, ...]
) -> dict[str, Any]:
    """One reported training in each of the worlds: the test error and when, on the way and at the end.

    Where all keep step, speeds change the time and nothing else, so the arithmetic is done once.
    """
    plan = Plan.parse(method.text(workers, own))
    job = job_for(study, plan, rate, seed, tuning=False)
    found: dict[str, Any] = {}
    run: Run | None = None
    for name in worlds:
        world = replace(WORLDS[name], seed=seed)
        if run is None or not plan.traits.synchronous:
            run = _run(job, plan, world)
            times = [h["seconds"] for h in run.history]
        else:
            times = retimed(job, plan, world, run)
        stale = run.summary()["staleness"]
        found[name] = {
            "curve": [[round(t, 4), _error(h)] for t, h in zip(times, run.history, strict=True)],
            "staleness": round(stale["mean"], 2), "stalest": stale["max"],
        }  # fmt: skip
    return found


def _run(job: pl.Job, plan: Plan, world: pl.World) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JobWarning)
        return pl.train(job, plan, engine="virtual", folder=None, world=world)


def retimed(job: pl.Job, plan: Plan, world: pl.World, run: Run) -> list[float]:
    """When the evaluations of a run whose workers keep step would have come in another world."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JobWarning)
        setup = set_up(job, plan, "virtual")
    size = Payload.length(setup.layout) * setup.layout.bytes_per_number
    rows = simulate(plan, setup.agenda, world, size).rows
    times = []
    for entry in run.history[:-1]:
        last = rows[(rows["update"] == entry["updates"] - 1) & (rows["kind"] != Kind.APPLY)]
        times.append(float(last["end"].max()) / 1e9)
    return [*times, float(rows["end"].max()) / 1e9]


def _error(entry: dict[str, float]) -> float:
    return round(1 - entry["test_accuracy"], 5)


def synchronous(method: Method) -> bool:
    return Plan.parse(method.text(2 if method.plan != "sequential" else 1, None)).gate is None


def settings(study: Study) -> dict[str, Any]:
    """What a figure depends on besides its key: figures made under others are not mixed with it."""
    kept = asdict(study)
    for word in ("seeds", "workers", "tuned_at", "target"):
        del kept[word]
    return {key: list(value) if isinstance(value, tuple) else value for key, value in kept.items()}  # as JSON has it
