"""SIGKILL to every worker of every plan that splits a model: how soon it is reported, and what is left behind."""

from __future__ import annotations

import signal
import time
import warnings
from typing import Any

from paceline.testing.conformance import no_update_lost
from paceline.testing.jobs import JOBS
from paceline.testing.killing import worker_processes
from paceline.testing.leaks import nothing_left_behind

from paceline.errors import WorkerDied
from paceline.interfaces.api.train import train
from paceline.plans.plan import Plan
from paceline.runtime.runs.progress import Progress

PLANS = (
    "tensor", "redundant", "per_layer:ways=0:columns", "zero", "experts", "cannon", "one_weird_trick", "ampnet",
    "mesh:data=1,layers=2,inside=2,balance=operations", "mesh:data=2,layers=2,inside=1,balance=operations",
)  # fmt: skip
REPLICAS = (
    "distbelief:data=2,layers=2,inside=1,balance=operations", "distbelief:data=2,layers=1,inside=2,balance=operations",
)  # fmt: skip
AFTER = 0.2  # seconds of training


class Kill:
    """Kills a worker while it trains, and notes when."""

    def __init__(self, number: int) -> None:
        self.number, self.sent = number, 0.0

    def __call__(self, state: Progress) -> None:
        if not self.sent and state.seconds >= AFTER:
            self.sent = time.monotonic()
            worker_processes()[self.number].send_signal(signal.SIGKILL)


def killed(plan: Plan, number: int) -> float:
    """Kill a worker; return the seconds until `train` raises, every process being gone."""
    kill = Kill(number)
    with nothing_left_behind():
        try:
            train(JOBS["mlp"]().with_(epochs=100_000), plan, folder=None, progress=kill)
        except WorkerDied as died:
            seconds, blamed = time.monotonic() - kill.sent, died.failure.worker
        else:
            raise AssertionError(f"{plan}: nobody noticed that worker {number} was killed")
    if blamed != number:
        raise AssertionError(f"{plan}: worker {number} was killed, and {blamed} is blamed")
    return seconds


def survived(plan: Plan, number: int) -> list[int]:
    """Kill a worker of one replica; return who is missing at the end of a run in which no update was lost."""
    kill = Kill(number)
    with nothing_left_behind():
        run = train(JOBS["mlp"]().with_(epochs=40), plan, folder=None, progress=kill)
    if not kill.sent or number not in run.summary()["deaths"]:
        raise AssertionError(f"{plan}: worker {number} was not killed, or its death is not in the summary")
    no_update_lost(run)
    return sorted(run.summary()["deaths"])


def measure_kills() -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    missing: dict[str, list[list[int]]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text in PLANS:
            plan = Plan.parse(text)
            found[text] = [round(killed(plan, number), 3) for number in range(plan.workers)]
            print(f"{text}: reported after {', '.join(f'{seconds:.3f}' for seconds in found[text])} s", flush=True)
        for text in REPLICAS:
            plan = Plan.parse(text)
            missing[text] = [survived(plan, number) for number in range(plan.workers)]
            print(f"{text}: goes on without {missing[text]}", flush=True)
    return {"seconds until reported": found, "worst": max(map(max, found.values())), "goes on without": missing}
