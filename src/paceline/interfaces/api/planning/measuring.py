"""Short trainings that are measured: what the planner is handed. They write nothing to disk."""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from torch import nn

from paceline.algorithms.codecs.catalogue import CODECS, SENT, parse
from paceline.errors import CrowdedWarning, JobWarning, PacelineError, RunFailed
from paceline.interfaces.api.lines import Say, silent
from paceline.planning.planner.choosing import MOST, corrected, finalists, measured_as
from paceline.planning.planner.prediction import Prediction
from paceline.plans.methods.prediction import Coding
from paceline.plans.plan import Plan
from paceline.runtime.engines.local.worker_pool import train
from paceline.runtime.engines.outcome import Life
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.live import Heartbeat
from paceline.runtime.runs.progress import Progress
from paceline.runtime.runs.trace import Columns, Kind, Trace
from paceline.runtime.runs.verdict import steady
from paceline.training.gradients.encoder import GradientEncoder, PushedMessage
from paceline.training.gradients.message import MessageShape
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import Layout, lay_out

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


class TimeLimit:
    """Follows a training, and ends it when it has taken more than so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, report: Progress) -> None:
        if report.seconds > self.seconds:
            raise RunFailed(f"{report.updates} of {report.total_updates} updates took more than {self.seconds:.1f} s")

    def connect(self, snapshot: object, stop: object) -> None:
        """Need neither."""


def measure(job: Job, plan: Plan, updates: int, most: float | None = None) -> Measured:
    """Train so many updates by this plan on processes of this machine; raise RunFailed after `most` seconds of it.

    A plan that averages replicas, or exchanges them with a centre, does so after the last update, too: its updates are
    made whole periods, so that bytes are those of a long training.
    """
    updates = -(-updates // _period(plan)) * _period(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JobWarning)
        warnings.simplefilter("ignore", CrowdedWarning)
        job = job.untested().with_(epochs=10**6)
        setup = set_up(job if job.on_nan == "skip" else job.with_(on_nan="ignore"), plan, "local", updates)
        follower = TimeLimit(most) if most is not None else None
        with (
            Heartbeat(None, updates) as heartbeat,
            train(Life(setup, heartbeat, deadline=DEADLINE, follower=follower)) as outcome,
        ):
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


# What each codec does to the gradient of a job: the bytes of a message, and the seconds to write and to read it.

ENOUGH = 1 << 20  # numbers of a gradient by which codecs are timed; a larger one takes as many times as long
REPEATS = 3


def codings(layout: Layout) -> dict[str, Coding]:
    """Return what each codec does with its default to gradients of this layout."""
    return {name: coding(name, layout) for name in CODECS}


def coding(name: str, layout: Layout) -> Coding:
    """Return what one codec does: its bytes follow from the layout, its seconds are measured."""
    codec = parse(name)
    assert codec is not None
    shape = MessageShape(codec, layout.shards[0], layout.dtype)
    timed, times = layout, 1.0
    if layout.numbers > ENOUGH:
        timed, times = lay_out(nn.Linear(1024, 1024, dtype=layout.dtype), 1, []), layout.numbers / ENOUGH
    encode, decode = _seconds(GradientEncoder(codec, timed, [range(len(timed.shards[0].parameters))], 0))
    return Coding(shape.fixed + 4 * SENT * shape.words, times * encode, times * decode)


def _seconds(encoder: GradientEncoder) -> tuple[float, float]:
    """Return the least seconds that a message took to write, and to read."""
    (shape,) = encoder.shapes
    pushed = PushedMessage(shape, encoder.seed)
    gradients = [0.001 * torch.randn(span.shape, dtype=shape.dtype) for span in shape.shard.parameters]
    buffers = [torch.zeros(span.shape, dtype=shape.dtype) for span in shape.shard.buffers]
    written, read = [], []
    for update in range(REPEATS):
        start = perf_counter()
        encoder.write(0, gradients, buffers, (0.0, 0.0), pushed.message, update, 0)
        encoder.finalize()
        middle = perf_counter()
        pushed.gradients(update)
        written.append(middle - start)
        read.append(perf_counter() - middle)
    return min(written), min(read)


# --- Plans that are measured: a check of predictions, or the finalists of a choice ------------------------------------
# The best of many predictions is likely too low. So a choice that profiles the model also trains by the plans that may
# be fastest, for a moment each, and ranks them by what they took.

ROUNDS, SECONDS = 3, 0.15
FAR = 1.15  # times as long as the fastest: a plan that takes longer is not measured again


def with_finalists(job: Job, predictions: Sequence[Prediction], say: Say = silent) -> list[Prediction]:
    """Return the predictions, with measured seconds for the plans that may be fastest.

    Where a plan turns out slower than predicted, the next ones are measured, too, until the fastest is a measured one.
    """
    current, tried = list(predictions), 0
    while shortlist := finalists(current, MOST - tried):
        tried += len(shortlist)
        runs = measured_in_rounds(job, shortlist, ROUNDS, SECONDS, say, FAR)
        measured = {each.name: _as_measured(each, done) for each, done in zip(shortlist, runs, strict=True)}
        current = corrected(predictions, [measured.get(each.name, each) for each in current])
    return current


def _as_measured(each: Prediction, runs: Sequence[Measured]) -> Prediction:
    if not runs:
        return replace(each, ruled_out="it cannot train this job")
    return measured_as(each, [run.seconds for run in runs])


def measured_in_rounds(
    job: Job,
    predictions: Sequence[Prediction],
    rounds: int,
    seconds: float,
    say: Say = silent,
    far: float = math.inf,
) -> list[list[Measured]]:
    """Train by every plan in each round, to and fro; a plan that cannot train the job has no measurements.

    One that takes more than `far` times as long as the fastest is left out of further rounds.
    """
    runs: list[list[Measured]] = [[] for _ in predictions]
    running = list(range(len(predictions)))
    for number in range(rounds):
        say(f"measuring {len(running)} plan{'s' * (len(running) > 1)}, round {number + 1} of {rounds} ...")
        for place in running[:: -1 if number % 2 else 1]:
            each, before = predictions[place], runs[place]
            guess = before[-1].seconds if before else each.seconds
            try:
                before.append(measure_for(job.with_(compute=each.compute), each.plan, seconds, guess, bool(before)))
            except PacelineError as error:
                say(f"{each.name} is left out: {str(error).splitlines()[0]}")
                before.clear()
        took = {place: statistics.median(run.seconds for run in runs[place]) for place in running if runs[place]}
        running = [place for place, median in took.items() if median <= far * min(took.values())]
        if len(running) < 2 and far < math.inf:
            break
    return runs
