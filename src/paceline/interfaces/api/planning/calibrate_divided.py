"""What pipelines and split layers take besides computing: small networks are trained by one plan of each.

The seconds of an update that computing does not explain are divided among the pieces of work that the update waits for,
and among the bytes that it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from paceline.errors import PacelineError
from paceline.interfaces.api.planning.calibration_jobs import calibration_job
from paceline.interfaces.api.planning.dividing import Divider
from paceline.interfaces.api.planning.measuring import measure
from paceline.planning.planner import fitting
from paceline.planning.planner.card import Card, Exchange
from paceline.planning.planner.costs import Calibrated
from paceline.planning.planner.facts import Facts
from paceline.planning.planner.methods import predict
from paceline.planning.planner.model_cost import cost_of
from paceline.plans.methods.prediction import NotPredicted
from paceline.plans.plan import Plan, make
from paceline.training.jobs.job import Job

JOBS = (0, 3, 4, 7)  # of `calibration_job`: two dense ones, attention, convolutions
UPDATES, TRIAL = 24, 1e-3  # seconds of a piece, and of a megabyte, by which counts are found
PLANS = {"stage": "gpipe", "part": "tensor"}


class Row(NamedTuple):
    """One network: what an update waits for, and its seconds."""

    pieces: float
    bytes: float
    #: Besides computing.
    seconds: float
    whole: float


def measure_divided(card: Card, workers: int) -> tuple[Exchange, ...]:
    """Measure what pieces of a divided model cost with so many workers; a plan that divides none has no exchange."""
    rows: dict[str, list[Row]] = {kind: [] for kind in PLANS}
    for number in JOBS:
        job = calibration_job(number)
        costs = Calibrated(card, lambda samples, job=job: cost_of(job, samples))  # type: ignore[misc]
        costs.cost(job.batch_size)
        facts = Facts(job.batch_size, costs.cost(job.batch_size).parameter_bytes, 0)
        alone = predict(make("sequential"), costs, facts).seconds
        speed = measure(job, make("sequential"), UPDATES).seconds / alone
        for kind, name in PLANS.items():
            plan = make(name, workers=workers)
            try:
                division = Divider(job, weighs=False).divide(plan)
                row = _row(job, plan, costs, replace(facts, division=division), speed, kind)
            except (PacelineError, NotPredicted):
                continue  # the network has fewer parts than workers
            rows[kind].append(row)
    return tuple(_fitted(kind, workers, found) for kind, found in rows.items() if found)


def _fitted(kind: str, workers: int, rows: Sequence[Row]) -> Exchange:
    return fitting.piece(
        kind,
        workers,
        [row.pieces for row in rows],
        [row.bytes for row in rows],
        [row.seconds for row in rows],
        [row.whole for row in rows],
    )


def _row(job: Job, plan: Plan, costs: Calibrated, facts: Facts, speed: float, kind: str) -> Row:
    """Measure one network; `speed` is how many times as long as predicted its computing takes."""

    def seconds(latency: float, byte: float) -> float:
        card = _with(costs.card, Exchange(kind, plan.workers, latency, 1 / byte if byte else 1e18, 0.0))
        return predict(plan, replace(costs, card=card), facts).seconds

    without = seconds(0.0, 0.0)
    pieces, sent = (seconds(TRIAL, 0.0) - without) / TRIAL, (seconds(0.0, 1e-6 * TRIAL) - without) / (1e-6 * TRIAL)
    took = measure(job, plan, UPDATES).seconds
    return Row(pieces, sent, took - speed * without, took)


def _with(card: Card, exchange: Exchange) -> Card:
    others = tuple(each for each in card.exchanges if each.kind != exchange.kind)
    return replace(card, exchanges=(*others, exchange))
