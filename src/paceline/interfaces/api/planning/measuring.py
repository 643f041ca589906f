"""Short trainings that are measured: what the planner is handed. They write nothing to disk."""

from __future__ import annotations

import itertools
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import CrowdedWarning, JobWarning
from paceline.plans.plan import Plan
from paceline.runtime.engines.local.worker_pool import train
from paceline.runtime.engines.outcome import Life
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.live import Heartbeat
from paceline.runtime.runs.trace import Columns, Kind, Trace
from paceline.runtime.runs.verdict import steady
from paceline.training.jobs.job import Job

WARM = 3  # updates of each worker that are left out
DEADLINE = 120.0  # seconds


@dataclass(frozen=True)
class Measured:
    """One short training, in seconds."""

    plan: Plan
    batch: int  # samples of an update
    updates: int
    #: Seconds of an update: of all workers together.
    seconds: float
    #: Each gradient's, of all workers.
    compute: tuple[float, ...]
    #: Each update's by the optimizer, or each push's; without waiting.
    update: tuple[float, ...]
    #: Each collective's, with and without waiting.
    meetings: tuple[float, ...]
    #: Waiting of each push for the shard.
    queued: tuple[float, ...]
    #: Seconds of a worker's step that no row of the trace covers.
    between: float
    #: Bytes that a worker sent in an update.
    bytes: float
    #: Bytes that a worker took at most.
    memory: int
    #: Share of the workers' time in which they could have run, but had no core.
    core_wait: float = 0.0


def measure(job: Job, plan: Plan, updates: int) -> Measured:
    """Train so many updates by this plan on processes of this machine.

    A plan that averages replicas, or exchanges them with a centre, does so after the last update, too: its updates are
    made whole periods, so that bytes are those of a long training.
    """
    updates = -(-updates // _period(plan)) * _period(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JobWarning)
        warnings.simplefilter("ignore", CrowdedWarning)
        job = job.untested().with_(epochs=10**6)
        setup = set_up(job if job.on_nan == "skip" else job.with_(on_nan="ignore"), plan, "local", updates)
        with Heartbeat(None, updates) as heartbeat, train(Life(setup, heartbeat, deadline=DEADLINE)) as outcome:
            steady_state = steady(outcome.trace)
            rows = outcome.trace.rows
            samples = setup.agenda.samples_per_update
            each = samples / steady_state.samples_per_second if steady_state else outcome.seconds / max(1, updates)
            each *= _dropped(setup.plan, rows, updates)
            measured = _measured(setup.plan, samples, updates, each, rows, max(outcome.peak_memory, default=0))
            return replace(measured, core_wait=outcome.core_wait / max(outcome.seconds * plan.workers, 1e-9))


def _dropped(plan: Plan, rows: Columns, updates: int) -> float:
    """How many gradients were computed for each one that was taken: servers that do not wait for all drop some."""
    if not plan.traits.gathers:
        return 1.0
    applied = updates * plan.parts
    return max(1.0, int((rows["kind"] == Kind.COMPUTE).sum()) / max(1, applied))


def traced(job: Job, plan: Plan, updates: int) -> Trace:
    """Train by this plan and return the trace of so many updates after the warm-up, from 0 on."""
    first = WARM * plan.workers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JobWarning)
        warnings.simplefilter("ignore", CrowdedWarning)
        job = job.untested().with_(epochs=10**6, on_nan="ignore")
        setup = set_up(job, plan, "local", first + updates)
        with Heartbeat(None, updates) as heartbeat, train(Life(setup, heartbeat, deadline=DEADLINE)) as outcome:
            rows = outcome.trace.rows[outcome.trace.rows["update"] >= first].copy()
    start = rows["start"].min(initial=rows["start"][0] if len(rows) else 0)
    rows["start"] -= start
    rows["end"] -= start
    return Trace(rows)


def _period(plan: Plan) -> int:
    """Return after how many updates a plan repeats what it exchanges."""
    every = max(1, plan.method.exchange_every)
    return every * plan.workers if plan.method.exchange is not None else every


def measure_for(job: Job, plan: Plan, seconds: float, guess: float, measured: bool = True) -> Measured:
    """Train for about so many seconds; `guess` is the seconds of an update, `measured` or only predicted.

    On a busy machine several threads may be a hundred times slower than predicted, so a prediction buys few updates.
    """
    least, most = 8 * plan.workers, 5000 if measured else 24 * plan.workers
    return measure(job, plan, max(least, min(most, round(seconds / max(guess, 1e-5)))))


def _measured(plan: Plan, samples: int, updates: int, seconds: float, rows: Columns, memory: int) -> Measured:
    by_worker = [_of_worker(rows, worker) for worker in range(plan.workers)]
    late = np.concatenate(by_worker) if by_worker else rows[:0]
    spans = (late["end"] - late["start"]) / 1e9
    waited, kind = late["waited"] / 1e9, late["kind"]
    meeting, apply = kind == Kind.COLLECTIVE, kind == Kind.APPLY
    computed = kind == Kind.COMPUTE
    return Measured(
        plan,
        samples,
        updates,
        seconds,
        tuple(spans[computed].tolist()),
        tuple((spans - waited)[apply].tolist()),
        tuple(spans[meeting].tolist()),
        tuple(waited[apply].tolist()),
        statistics.median(_between(mine) for mine in by_worker) if by_worker else 0.0,
        float(rows["bytes"].sum()) / max(1, updates) / plan.workers,
        memory,
    )


def _of_worker(rows: Columns, worker: int) -> Columns:
    """The rows of one worker after its warm-up."""
    mine = rows[rows["worker"] == worker]
    mine = mine[np.argsort(mine["start"], kind="stable")]
    starts = mine["start"][mine["kind"] == Kind.COMPUTE]
    late: Columns = mine[mine["start"] >= starts[WARM]] if len(starts) > WARM + 2 else mine
    return late


def _between(mine: Columns) -> float:
    """The median of what a worker does between two gradients and no row covers, in seconds."""
    computes = np.flatnonzero(mine["kind"] == Kind.COMPUTE)
    gaps = []
    for first, stop in itertools.pairwise(computes):
        part = mine[first:stop]
        covered = int((part["end"] - part["start"]).sum())
        waited = int(mine["waited"][stop])
        gaps.append(max(0, int(mine["start"][stop]) - int(mine["start"][first]) - covered - waited))
    return float(np.median(gaps)) / 1e9 if gaps else 0.0


Say = Callable[[str], None]
