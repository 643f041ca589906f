"""The statistics of each run, as in the table, the summary and every export. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.runtime.report.lanes import Lane, lanes
from paceline.runtime.report.reading import Reading
from paceline.runtime.runs.comparison import Range
from paceline.runtime.runs.record import Status
from paceline.runtime.runs.time_accounting import Time, straggling


@dataclass(frozen=True)
class RunStats:
    """The row of one run. None stands for what is not known or was not measured."""

    name: str
    plan: str
    workers: int
    engine: str
    status: str
    job: str
    seed: int | None
    updates: int | None
    samples: int | None
    seconds: float
    samples_per_second: float | None
    half_range: float | None  # half the range of the timed rounds, relative to the speed
    speedup: float | None
    speedup_interval: Range | None  # of timed runs, as the next two
    efficiency: float | None  # speed-up per worker
    ceiling_share: float | None
    ceiling_share_interval: Range | None
    timed: bool  # timed by a comparison in interleaved rounds; else the speed is that of the training
    test_accuracy: float | None
    test_accuracy_interval: Range | None
    test_loss: float | None
    train_loss: float | None
    metrics: dict[str, float]  # all figures of the last evaluation, those of the user's own too
    seconds_to_common_accuracy: float | None
    staleness_mean: float | None
    staleness_p95: float | None
    staleness_max: int | None
    bytes_sent: int | None
    wait_fraction: float | None
    shares: dict[str, float]  # of the workers' time, by kind
    divided: bool  # whether the trace tells computing from communicating and waiting
    stragglers: dict[int, float]  # worker: its speed as a share of the others' median
    deaths: list[int]
    path: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_stats(readings: Sequence[Reading], laid: Sequence[Sequence[Lane]]) -> list[RunStats]:
    """The rows of all runs of a page; a run that no comparison has timed is compared with the others of the page."""
    return [_stats_of(reading, mine, readings) for reading, mine in zip(readings, laid, strict=True)]


def lanes_of(readings: Sequence[Reading]) -> list[list[Lane]]:
    return [lanes(reading.trace, reading.divided) for reading in readings]


def _stats_of(reading: Reading, mine: Sequence[Lane], others: Sequence[Reading]) -> RunStats:
    record, summary, row = reading.record, reading.record.summary, reading.timed.row if reading.timed else None
    rate = row.samples_per_second if row else _rate(reading)
    speedup, ceiling = (row.speedup, row.ceiling_share) if row else (None, None)
    if not row and rate:
        single, limit = _single(reading, others), _limit(reading, others)
        speedup, ceiling = rate / single if single else None, rate / limit if limit else None
    stale, metrics = summary.staleness if summary else None, summary.metrics if summary else {}
    return RunStats(
        name=reading.name,
        plan=reading.plan,
        workers=reading.workers,
        engine=record.engine,
        status=record.status.value,
        job=record.job.name,
        seed=record.job.seed,
        updates=summary.updates if summary else None,
        samples=summary.samples if summary else None,
        seconds=reading.seconds,
        samples_per_second=rate,
        half_range=(max(row.spread) - min(row.spread)) / 2 / rate if row and rate else None,
        speedup=speedup,
        speedup_interval=row.speedup_interval if row else None,
        efficiency=speedup / reading.workers if speedup is not None else None,
        ceiling_share=ceiling,
        ceiling_share_interval=row.ceiling_share_interval if row else None,
        timed=row is not None,
        test_accuracy=metrics.get("test_accuracy"),
        test_accuracy_interval=row.test_accuracy_interval if row else None,
        metrics=metrics,
        test_loss=metrics.get("test_loss"),
        train_loss=summary.train_loss if summary else None,
        seconds_to_common_accuracy=row.seconds_to_common_accuracy if row else None,
        staleness_mean=stale.mean if stale else None,
        staleness_p95=stale.p95 if stale else None,
        staleness_max=stale.max if stale else None,
        bytes_sent=summary.bytes_sent if summary and reading.divided else None,
        wait_fraction=summary.wait_fraction if summary and reading.divided else None,
        shares=shares(mine),
        divided=reading.divided,
        stragglers=straggling(reading.trace.rows, reading.workers),
        deaths=list(summary.deaths) if summary else [],
        path=str(reading.path),
    )


def _rate(reading: Reading) -> float | None:
    """The speed of the training itself; None if it has no summary."""
    return (reading.record.summary.samples_per_second if reading.record.summary else None) or None


def _same_job(one: Reading, other: Reading) -> bool:
    keys = ("name", "batch_size", "parameters", "samples")
    same = all(getattr(one.record.job, key) == getattr(other.record.job, key) for key in keys)
    return same and one.record.engine == other.record.engine


def _single(reading: Reading, others: Sequence[Reading]) -> float | None:
    """The best speed of one process on the same job among the runs of the page."""
    rates = [_rate(o) for o in others if o.workers == 1 and o.record.status == Status.DONE and _same_job(reading, o)]
    return max((rate for rate in rates if rate), default=None)


def _limit(reading: Reading, others: Sequence[Reading]) -> float | None:
    """The speed of as many workers that never communicate."""
    some = [o for o in others if o.method == "ceiling" and o.workers == reading.workers and _same_job(reading, o)]
    return max((rate for o in some if (rate := _rate(o))), default=None)


def shares(mine: Sequence[Lane]) -> dict[str, float]:
    total = sum((lane.seconds for lane in mine), np.zeros(len(Time)))
    total_time = float(total.sum())
    return {time.name.lower(): float(total[time]) / total_time for time in Time} if total_time else {}
