"""SIGKILL to every worker of every plan that splits a model: how soon it is reported, and what is left behind."""

from __future__ import annotations

import signal
import time
import warnings
from typing import Any

from paceline.api.train import train
from paceline.errors import WorkerDied
from paceline.plans.plan import Plan
from paceline.runs.progress import Progress
from paceline.testing.jobs import JOBS
from paceline.testing.killing import worker_processes
from paceline.testing.leaks import nothing_left_behind

PLANS = (
    "tensor", "redundant", "per_layer:ways=0:columns", "zero", "experts", "cannon", "one_weird_trick", "ampnet",
    "mesh:data=1,layers=2,inside=2,balance=operations", "mesh:data=2,layers=2,inside=1,balance=operations",
)  # fmt: skip
AFTER = 0.2  # seconds of training


def killed(plan: Plan, number: int) -> float:
    """Kill a worker while it trains; return the seconds until `train` raises, every process being gone."""
    sent: list[float] = []

    def progress(state: Progress) -> None:
        if not sent and state.seconds >= AFTER:
            sent.append(time.monotonic())
            worker_processes()[number].send_signal(signal.SIGKILL)

    with nothing_left_behind():
        try:
            train(JOBS["mlp"]().with_(epochs=100_000), plan, folder=None, progress=progress)
        except WorkerDied as died:
            seconds, blamed = time.monotonic() - sent[0], died.failure.worker
        else:
            raise AssertionError(f"{plan}: nobody noticed that worker {number} was killed")
    if blamed != number:
        raise AssertionError(f"{plan}: worker {number} was killed, and {blamed} is blamed")
    return seconds


def measure_kills() -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text in PLANS:
            plan = Plan.parse(text)
            found[text] = [round(killed(plan, number), 3) for number in range(plan.workers)]
            print(f"{text}: reported after {', '.join(f'{seconds:.3f}' for seconds in found[text])} s", flush=True)
    return {"seconds until reported": found, "worst": max(map(max, found.values()))}
