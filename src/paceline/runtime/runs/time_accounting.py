"""What each worker's time was spent on, summed over rows of the trace as they come, and which worker is a straggler.

What workers do tells a straggler from its victims, not how far they get: a straggler needs longer for the same samples,
or writes no rows while it computes. Its victims compute as quickly as ever, and wait.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from paceline.runtime.runs.record import Staleness, Summary
from paceline.runtime.runs.trace import Columns, Kind, Trace, percentile, weighted_losses


class Time(IntEnum):
    """What a worker's time is spent on."""

    COMPUTE = 0
    UPDATE = 1
    COMMUNICATE = 2
    WAIT = 3
    OTHER = 4  # between rows of the trace: taking a batch, copying a snapshot, bookkeeping
    UNMEASURED = 5  # inside code that the trace does not divide, such as PyTorch's DDP


#: What the time of a row is spent on, without its waiting.
WORK = {
    Kind.COMPUTE: Time.COMPUTE,
    Kind.STAGE: Time.COMPUTE,
    Kind.COLLECTIVE: Time.COMMUNICATE,
    Kind.DROP: Time.COMMUNICATE,
    Kind.APPLY: Time.UPDATE,
}
FIRST = (Kind.COMPUTE, Kind.STAGE)  # kinds whose waiting comes before the start of the row
Spans = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]  # starts, ends, kinds


def spans(rows: Columns) -> Spans:
    """Make one span of time for each row's work, and one for its waiting, which is drawn first.

    That is exact for a COMPUTE, which waits at the gate. A collective waits several times, and the trace has the sum.
    """
    rows = rows[np.isin(rows["kind"], list(WORK))]
    kinds = np.zeros(len(rows), np.int64)
    for kind, work in WORK.items():
        kinds[rows["kind"] == kind] = work
    before = np.where(np.isin(rows["kind"], FIRST), rows["waited"], 0)
    starts = rows["start"] - before
    works = starts + rows["waited"]
    waits = np.full(len(rows), int(Time.WAIT))
    columns = (np.concatenate(pair) for pair in ((starts, works), (works, rows["end"]), (waits, kinds)))
    first, last, what = columns
    real = last > first
    return first[real], last[real], what[real]


class TimeAccounting:
    """Sums per worker. The difference of two copies of `sums` is what was added in between."""

    FIELDS = ("pieces", "samples", "loss", "weight", "pushes", "staleness", *(time.name for time in Time))

    def __init__(self, workers: int) -> None:
        self.sums = np.zeros((workers, len(self.FIELDS)))

    def add(self, rows: Columns) -> None:
        """Add what these rows account for."""
        computed = rows[(rows["kind"] == Kind.COMPUTE) & (rows["samples"] > 0)]
        self._add("pieces", computed, np.ones(len(computed)))
        self._add("samples", computed, computed["samples"])
        losses, weights = weighted_losses(computed)
        self._add("loss", computed, losses)
        self._add("weight", computed, weights)
        pushed = rows[(rows["kind"] == Kind.APPLY) & (rows["version"] > 0)]
        self._add("pushes", pushed, np.ones(len(pushed)))
        self._add("staleness", pushed, pushed["version"] - 1 - pushed["base"])
        for kind, work in WORK.items():
            some = rows[rows["kind"] == kind]
            inside = 0 if kind in FIRST else some["waited"]
            self._add(work.name, some, some["end"] - some["start"] - inside)
            self._add("WAIT", some, some["waited"])

    def total(self, field: str) -> float:
        """Sum a field over all workers."""
        return float(self.sums[:, self.FIELDS.index(field)].sum())

    def _add(self, field: str, rows: Columns, values: npt.NDArray[np.generic]) -> None:
        workers = len(self.sums)
        self.sums[:, self.FIELDS.index(field)] += np.bincount(rows["worker"], values, workers)[:workers]


class Pace:
    """Rates per worker, from the sums of a window; NaN where the worker did nothing of the kind."""

    def __init__(self, sums: npt.NDArray[np.float64]) -> None:
        self._sums = sums

    def of(self, field: str) -> npt.NDArray[np.float64]:
        """The sum of a field per worker."""
        mine: npt.NDArray[np.float64] = self._sums[:, TimeAccounting.FIELDS.index(field)]
        return mine

    def _per(self, field: str, by: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        ratios = np.full(len(by), math.nan)
        np.divide(self.of(field), by, out=ratios, where=by > 0)
        return ratios

    @property
    def loss(self) -> npt.NDArray[np.float64]:
        """Mean loss, without losses that are not finite."""
        return self._per("loss", self.of("weight"))

    @property
    def staleness(self) -> npt.NDArray[np.float64]:
        """Mean staleness per push."""
        return self._per("staleness", self.of("pushes"))

    @property
    def waiting(self) -> npt.NDArray[np.float64]:
        """Share of the time that rows account for."""
        return self._per("WAIT", sum((self.of(time.name) for time in Time), np.zeros(len(self._sums))))

    @property
    def speed(self) -> npt.NDArray[np.float64]:
        """Samples per second of computing, without waiting."""
        return self._per("samples", self.of("COMPUTE") / 1e9)

    def stragglers(self) -> dict[int, float]:
        """Find the workers that compute much slower than the others' median, with their share of it."""
        return stragglers(np.where(self.of("pieces") >= ENOUGH, self.speed, math.nan))


def pace_of(rows: Columns, workers: int) -> Pace:
    """Return the rates of a whole run."""
    accounting = TimeAccounting(workers)
    accounting.add(rows)
    return Pace(accounting.sums)


def straggling(rows: Columns, workers: int) -> dict[int, float]:
    """Find the stragglers of a whole run; a single worker is never one."""
    return pace_of(rows, workers).stragglers() if workers > 1 else {}


def idling(rows: Columns, workers: int) -> tuple[int, ...]:
    """Return the workers that computed nothing and did not die."""
    active = rows["worker"][np.isin(rows["kind"], (*FIRST, Kind.DEATH))]
    return tuple(sorted(set(range(workers)) - set(active.tolist())))


ENOUGH = 10  # gradients that a speed is judged by, at least
SLOW = 0.75  # share of the others' median below which a worker is a straggler


def stragglers(speeds: npt.NDArray[np.float64]) -> dict[int, float]:
    """Compare each worker with the median of the others: its own speed would halve the difference between two."""
    slow_workers = {}
    for worker, speed in enumerate(speeds):
        others = np.delete(speeds, worker)
        others = others[np.isfinite(others)]
        if len(others) and np.isfinite(speed) and speed < SLOW * np.median(others):
            slow_workers[worker] = float(speed / np.median(others))
    return slow_workers


# --- The figures of a run that follow from its trace alone ------------------------------------------------------------


def summarize(
    trace: Trace, *, plan: str, engine: str, workers: int, updates: int, samples: int, seconds: float
) -> Summary:
    """Make a summary of what the trace says; what else is known is put in with `dataclasses.replace`."""
    return Summary(
        plan=plan,
        engine=engine,
        workers=workers,
        updates=updates,
        samples=samples,
        seconds=seconds,
        samples_per_second=samples / seconds if seconds > 0 else 0.0,
        train_loss=_train_loss(trace),
        staleness=_staleness(trace),
        not_finite=trace.not_finite(),
        bytes_sent=trace.bytes_sent(),
        wait_fraction=trace.wait_fraction(),
        stragglers=straggling(trace.rows, workers),
        deaths=tuple(int(worker) for worker in trace.of_kind(Kind.DEATH)["worker"]),
    )


def _train_loss(trace: Trace) -> float | None:
    """The mean over the last tenth of the updates: the loss of the last batch alone is chance."""
    updates, losses = trace.loss_curve()
    return float(np.mean(losses[-max(1, len(losses) // 10) :])) if len(updates) else None


def _staleness(trace: Trace) -> Staleness:
    stale = trace.staleness()
    if not len(stale):
        return Staleness()
    return Staleness(float(stale.mean()), percentile(stale, 95), int(stale.max()))
