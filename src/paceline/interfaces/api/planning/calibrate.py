"""`calibrate`: measures what this machine can do, and writes its card.

steps of small networks of many shapes, with 1 to n busy cores and with more threads     operations
trainings of one vector, which do nothing but exchange it, at several sizes              meetings, pushes, ddp
"""

from __future__ import annotations

import datetime
import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from paceline.algorithms.collectives.rings import Ring
from paceline.errors import PacelineError, UsageError
from paceline.interfaces.api.lines import Say, silent, to_stderr
from paceline.interfaces.api.planning.calibration_jobs import BusyCores, Case, Steps, calibration_job, vector_job
from paceline.interfaces.api.planning.dividing import Divider
from paceline.interfaces.api.planning.measuring import Measured, measure
from paceline.planning.planner import fitting
from paceline.planning.planner.card import (
    BACKWARD,
    FORWARD,
    UPDATE,
    USUAL,
    Card,
    ExchangeSeconds,
    Operations,
    default_file,
)
from paceline.planning.planner.costs import Calibrated
from paceline.planning.planner.facts import Facts
from paceline.planning.planner.methods import predict
from paceline.planning.planner.model_cost import cost_of
from paceline.plans.methods.prediction import NotPredicted
from paceline.plans.plan import Plan, make
from paceline.runtime.runs.record import this_machine
from paceline.training.jobs.job import Job

# --- What pipelines and split layers take besides computing: small networks are trained by one plan of each -----------
# The seconds of an update that computing does not explain are divided among the pieces of work that the update waits
# for, and among the bytes that it sends.

DIVIDED_JOBS = (0, 3, 4, 7)  # of `calibration_job`: two dense ones, attention, convolutions
DIVIDED_UPDATES, TRIAL = 24, 1e-3  # seconds of a piece, and of a megabyte, by which counts are found
PLANS = {"stage": "gpipe", "part": "tensor"}


class NetworkTiming(NamedTuple):
    """One network: what an update waits for, and its seconds."""

    pieces: float
    bytes: float
    #: Besides computing.
    seconds: float
    whole: float


def measure_divided(card: Card, workers: int) -> tuple[ExchangeSeconds, ...]:
    """Measure what pieces of a divided model cost with so many workers; a plan that divides none has no exchange."""
    rows: dict[str, list[NetworkTiming]] = {kind: [] for kind in PLANS}
    for number in DIVIDED_JOBS:
        job = calibration_job(number)
        costs = Calibrated(card, lambda samples, job=job: cost_of(job, samples))  # type: ignore[misc]
        costs.cost(job.batch_size)
        facts = Facts(job.batch_size, costs.cost(job.batch_size).parameter_bytes, 0)
        alone = predict(make("sequential"), costs, facts).seconds
        speed = measure(job, make("sequential"), DIVIDED_UPDATES).seconds / alone
        for kind, name in PLANS.items():
            plan = make(name, workers=workers)
            try:
                division = Divider(job, weighs=False).divide(plan)
                row = _row(job, plan, costs, replace(facts, division=division), speed, kind)
            except (PacelineError, NotPredicted):
                continue  # the network has fewer parts than workers
            rows[kind].append(row)
    return tuple(_fitted(kind, workers, timings) for kind, timings in rows.items() if timings)


def _fitted(kind: str, workers: int, rows: Sequence[NetworkTiming]) -> ExchangeSeconds:
    return fitting.piece(
        kind,
        workers,
        [row.pieces for row in rows],
        [row.bytes for row in rows],
        [row.seconds for row in rows],
        [row.whole for row in rows],
    )


def _row(job: Job, plan: Plan, costs: Calibrated, facts: Facts, speed: float, kind: str) -> NetworkTiming:
    """Measure one network; `speed` is how many times as long as predicted its computing takes."""

    def seconds(latency: float, byte: float) -> float:
        card = _with(costs.card, ExchangeSeconds(kind, plan.workers, latency, 1 / byte if byte else 1e18, 0.0))
        return predict(plan, replace(costs, card=card), facts).seconds

    without = seconds(0.0, 0.0)
    pieces, sent = (seconds(TRIAL, 0.0) - without) / TRIAL, (seconds(0.0, 1e-6 * TRIAL) - without) / (1e-6 * TRIAL)
    took = measure(job, plan, DIVIDED_UPDATES).seconds
    return NetworkTiming(pieces, sent, took - speed * without, took)


def _with(card: Card, exchange: ExchangeSeconds) -> Card:
    others = tuple(each for each in card.exchanges if each.kind != exchange.kind)
    return replace(card, exchanges=(*others, exchange))


SECONDS = 30.0
SHARE = 0.5  # of the seconds that operations get
JOBS = 63
SAID = 9  # of which a line about the progress tells
LENGTHS = (1_000, 10_000, 55_000, 200_000, 600_000, 2_000_000)  # floats
EVERY = {2: LENGTHS, 3: LENGTHS[1::2], 4: LENGTHS[1::2]}  # at how many workers, at which lengths
UPDATES = 60
DRAWN = 0.1  # weight of usual coefficients in a fit
TENSORS, SPLIT = 20, 200_000  # of a vector in many pieces, and its length
THOROUGH = 10.0  # seconds from which on everything is measured


def calibrate(seconds: float = SECONDS, file: Path | None = None, say: Say = to_stderr) -> Card:
    """Measure this machine and write its card, from which `choose` predicts.

    Args:
        seconds: How long the measurement takes, about.
        file: Where the card is written. Default: where `choose` looks for it.
        say: A function that is called with lines about the progress. Default: prints to stderr.
    """
    card = measured_card(seconds, say)
    try:
        if file is None:
            card.keep()
        else:
            card.write(file)
    except OSError as error:
        raise UsageError(
            f"the card cannot be written to {file or default_file()}: {error.strerror}; name another file "
            "(file=, -o), and give it to other commands (card=, --card)"
        ) from error
    return card


def measured_card(seconds: float = SECONDS, say: Say = silent) -> Card:
    """Measure this machine."""
    if not 2 <= seconds < 3600:
        raise UsageError(f"seconds={seconds}: give from 2 to 3600; the default is {SECONDS:.0f}")
    machine, cores = this_machine(), len(os.sched_getaffinity(0))
    operations = measure_operations(cores, seconds * SHARE, say=say)
    exchanges, between = measure_exchanges(seconds, say)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    card = Card(
        machine.processor,
        cores,
        memory,
        operations,
        exchanges,
        (),
        between,
        torch.__version__,
        datetime.date.today().isoformat(),
    )
    if seconds >= THOROUGH:
        say("pipelines and split layers of small networks ...")
        card = replace(card, exchanges=(*exchanges, *measure_divided(card, max(2, cores))))
    return card


def cases(cores: int) -> list[Case]:
    """Return what is measured: every number of busy cores up to 4, then doublings, and one process with all threads."""
    counts = sorted({count for count in (1, 2, 3, 4, 8, 16, 32, 64) if count <= cores} | {cores})
    return [Case(busy, 1) for busy in counts] + ([Case(1, cores)] if cores > 1 else [])


def measure_operations(cores: int, seconds: float, jobs: int = JOBS, say: Say = silent) -> tuple[Operations, ...]:
    """Measure steps of calibration jobs in all cases, and fit the coefficients of each."""
    all_cases = cases(cores)
    steps: dict[Case, list[Steps]] = defaultdict(list)
    each = seconds / jobs / (len(all_cases) + 1)
    compute, update = [], []
    with BusyCores(cores) as pool:
        for number in range(jobs):
            if number % SAID == 0:
                say(f"steps of {jobs} small networks with 1 to {cores} busy cores, from network {number + 1} on ...")
            job = calibration_job(number)
            cost = cost_of(job, job.batch_size, here=True)
            compute.append(cost.figures(FORWARD, BACKWARD))
            update.append(cost.figures(UPDATE))
            pool.prepare_job(number)
            for case in all_cases if number % 2 else reversed(all_cases):
                steps[case].append(pool.steps(case, each))
    first = _operations(all_cases[0], steps[all_cases[0]], compute, update, USUAL, USUAL, DRAWN)
    rest = all_cases[1:]
    return first, *(_operations(c, steps[c], compute, update, first.compute, first.update, 2 * DRAWN) for c in rest)


def _operations(
    case: Case,
    steps: Sequence[Steps],
    compute: list[dict[str, float]],
    update: list[dict[str, float]],
    usual: Mapping[str, float],
    usual_update: Mapping[str, float],
    weight: float,
) -> Operations:
    """Fit one case; coefficients are drawn towards usual ones, or towards those of the first case."""
    fitted = fitting.fit(compute, [statistics.median(each.compute) for each in steps], usual, weight)
    updated = fitting.fit(update, [statistics.median(each.update) for each in steps], usual_update, weight)
    shares = [t / statistics.median(each.compute) for each in steps for t in each.compute if len(each.compute) >= 5]
    return Operations(
        case.busy, case.threads, fitted.coefficients, updated.coefficients, fitted.error, fitting.quantiles(shares)
    )


def measure_exchanges(seconds: float, say: Say = silent) -> tuple[tuple[ExchangeSeconds, ...], float]:
    """Measure meetings, pushes and PyTorch's all-reduce; also the Python of one process in each update."""
    alone = {length: measure(vector_job(length), Plan.parse("sequential"), UPDATES) for length in LENGTHS}
    exchanges = []
    for workers, lengths in EVERY.items():
        say(f"exchanges between {workers} workers ...")
        exchanges.append(_exchange("meeting", "ring", workers, lengths, alone))
        exchanges.append(_exchange("push", "downpour", workers, lengths, alone))
        if seconds >= THOROUGH and workers != 3:
            exchanges.append(_exchange("ddp", "ddp", workers, lengths, alone))
    least = alone[min(LENGTHS)]
    work_seconds = statistics.median(least.compute) + statistics.median(least.update)
    return tuple(exchanges), max(0.0, least.seconds - work_seconds)


def _exchange(
    kind: str, plan: str, workers: int, lengths: Sequence[int], alone: Mapping[int, Measured]
) -> ExchangeSeconds:
    """Measure one plan that exchanges vectors of several lengths, and one that exchanges a vector in many tensors."""
    runs = [measure(vector_job(length), Plan.parse(plan, workers), UPDATES) for length in lengths]
    seconds = [_seconds(kind, run, alone[length]) for run, length in zip(runs, lengths, strict=True)]
    between = statistics.median(each.between for each in runs)
    ring = Ring() if kind != "push" else None
    many = vector_job(SPLIT, TENSORS)
    sequential, divided = (measure(many, p, UPDATES) for p in (Plan.parse("sequential"), Plan.parse(plan, workers)))
    one = next(took for took, length in zip(seconds, lengths, strict=True) if length == SPLIT)
    tensor = max(0.0, _seconds(kind, divided, sequential) - one) / (TENSORS - 1)
    return fitting.exchange(kind, workers, [4.0 * n for n in lengths], seconds, ring, between, tensor)


def _seconds(kind: str, run: Measured, alone: Measured) -> float:
    """The seconds of an exchange. A push has the update in it; PyTorch's all-reduce lies within the computation."""
    if kind == "meeting":
        return statistics.median(run.meetings)
    took, baseline = (run.update, alone.update) if kind == "push" else (run.compute, alone.compute)
    return max(1e-6, statistics.median(took) - statistics.median(baseline))
