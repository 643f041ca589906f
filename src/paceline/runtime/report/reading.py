"""Run folders as a report reads them: what they hold and lack, each worker's time in lanes, statistics of a run.

A folder may be of an older version, of a run that failed, or of one that still goes on: the page says what it cannot
show. Nothing is unpickled, so it is safe to read a folder from elsewhere.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import RunFolderError
from paceline.runtime.runs.comparison import ComparisonRecord, Range, Row, read_comparison
from paceline.runtime.runs.live import RunEvent, read_events, read_hang
from paceline.runtime.runs.record import RunRecord, Status, read_record
from paceline.runtime.runs.time_accounting import Time, spans, straggling
from paceline.runtime.runs.trace import Trace


@dataclass(frozen=True)
class Timed:
    """The place of a run in the comparison that it is part of."""

    row: Row
    comparison: ComparisonRecord


@dataclass(frozen=True)
class Reading:
    """A run folder as it was read."""

    path: Path
    record: RunRecord  # what run.json holds
    trace: Trace
    timed: Timed | None  # None: the run is not part of a comparison
    missing: tuple[str, ...]  # what the folder lacks, in sentences
    events: tuple[RunEvent, ...] = ()  # of a run on a cluster
    hang: str = ""  # what `paceline watch` found
    name: str = ""  # unique among the runs of a page

    @property
    def plan(self) -> str:
        return self.record.plan

    @property
    def method(self) -> str:
        """The plan's name."""
        return self.plan.partition(":")[0]

    @property
    def unsettled(self) -> bool:
        """Whether the rounds of its comparison disagree, so that a ratio says less than its interval."""
        return self.timed is not None and self.timed.comparison.disagreement is not None

    @property
    def divided(self) -> bool:
        """Whether the trace tells computing from communicating and waiting; what PyTorch's DDP does is not in it."""
        return self.method != "ddp"

    @property
    def short(self) -> str:
        """The plan as a table shows it: downpour ×2 shards=2"""
        options = [option for option in self.plan.partition(":")[2].split(",") if option]
        rest = [option for option in options if not option.startswith("workers=")]
        return " ".join([self.method, *[f"×{self.workers}"] * (self.workers > 1), *rest])

    @property
    def workers(self) -> int:
        return self.record.workers

    @property
    def seconds(self) -> float:
        """Seconds of training; those that the trace covers, if the run has no summary."""
        rows, summary = self.trace.rows, self.record.summary
        if summary is not None and summary.seconds:
            return summary.seconds
        return float(rows["end"].max() / 1e9) if len(rows) else 0.0

    @property
    def started(self) -> float:
        """When the run began, in seconds since 1970; when the folder was made, if the record does not say."""
        try:
            return datetime.fromisoformat(self.record.started).timestamp()
        except ValueError:
            return self.path.stat().st_mtime


def open_all(paths: Sequence[Path]) -> list[Reading]:
    """Read the runs in these folders, ordered by their start: each is a run's folder, or has some below it."""
    readings: list[Reading] = []
    for path in paths:
        visited = {reading.path for reading in readings}
        opened = [_open(folder) for folder in run_folders(path) if folder not in visited]
        readings += sorted(opened, key=lambda reading: (reading.started, reading.path.name))
    return _named(readings)


def run_folders(path: Path) -> list[Path]:
    """Return the folder itself if it is a run's, or all run folders below it; RunFolderError if there is none."""
    if not path.is_dir():
        raise RunFolderError(f"{path} is not a folder; give a run folder, or a folder that contains some, such as runs")
    folders = [path] if (path / "run.json").exists() else [file.parent for file in path.rglob("run.json")]
    if not folders:
        raise RunFolderError(
            f"{path} is not a run folder and contains no run folder: there is no run.json in or below it"
        )
    return folders


def _open(folder: Path) -> Reading:
    record, missing = read_record(folder), []
    trace = Trace.of([])
    try:
        trace = Trace.open(folder / "trace.arrow")
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are ValueErrors
        missing.append(f"Its trace cannot be read ({_first_line(error)}), so there is no timeline and no staleness.")
    if not record.model:
        missing.append("It was recorded without the model's outline.")
    if record.status == Status.RUNNING:
        missing.append("It had not ended when this page was made, or was killed.")
    timed, events = _timed(folder.resolve()), tuple(read_events(folder))
    return Reading(folder, record, trace, timed, tuple(missing), events=events, hang=read_hang(folder))


def _timed(folder: Path) -> Timed | None:
    comparison = read_comparison(folder.parent)
    row = comparison.row_of(folder.name) if comparison else None
    return Timed(row, comparison) if comparison and row else None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:120] or type(error).__name__


def _named(readings: list[Reading]) -> list[Reading]:
    """Name each run by its plan, with a number where several have the same one."""
    plans = [reading.short for reading in readings]
    counts: dict[str, int] = {}
    result = []
    for reading in readings:
        counts[reading.short] = number = counts.get(reading.short, 0) + 1
        several = f" #{number}" if plans.count(reading.short) > 1 else ""
        result.append(replace(reading, name=reading.short + several))
    return result


# Lanes: one worker's time from start to end, as spans of one kind each and without gaps. Pure.
#
# trace ──▶ lane ──▶ binned    the share of each kind per bin: what a picture of some width shows
#               └──▶ merged    a lane with fewer spans that keeps each kind's share
#               └──▶ packed    about one byte per span, which the page unpacks when the user zooms in


class Lane(NamedTuple):
    """The spans of one worker."""

    worker: int
    edges: npt.NDArray[np.int64]  # nanoseconds; span n lies between edge n and n + 1
    kinds: npt.NDArray[np.int64]

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """The total of each kind of time."""
        return np.bincount(self.kinds, np.diff(self.edges), len(Time)) / 1e9


def lanes(trace: Trace, divided: bool = True) -> list[Lane]:
    """The lanes of all workers that have rows in the trace.

    If the trace is not `divided`, its workers also communicate and wait in what it has as computing.
    """
    rows = trace.rows
    worker_lanes = [lane for worker in np.unique(rows["worker"]) if len((lane := _lane(trace, int(worker))).kinds)]
    return worker_lanes if divided else [_undivided(lane) for lane in worker_lanes]


def _undivided(lane: Lane) -> Lane:
    return lane._replace(kinds=np.where(lane.kinds == Time.COMPUTE, int(Time.UNMEASURED), lane.kinds))


def _lane(trace: Trace, worker: int) -> Lane:
    starts, ends, kinds = spans(trace.rows[trace.rows["worker"] == worker])
    order = np.lexsort((ends, starts))
    starts, ends, kinds = starts[order], ends[order], kinds[order]
    if not len(starts):
        return Lane(worker, np.zeros(1, np.int64), kinds)
    ends = np.maximum.accumulate(ends)  # where two overlap, the first one is kept whole
    starts = np.maximum(starts, np.concatenate(([starts[0]], ends[:-1])))
    edges = np.column_stack((starts, ends)).ravel()
    every = np.full(2 * len(kinds) - 1, int(Time.OTHER))  # between two spans
    every[::2] = kinds
    return _tidy(worker, edges, every)


def _tidy(worker: int, edges: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64]) -> Lane:
    """A lane without empty spans, and with neighbours of the same kind joined."""
    real = np.diff(edges) > 0
    edges, kinds = np.concatenate((edges[:1], edges[1:][real])), kinds[real]
    last = np.ones(len(kinds), bool)
    last[:-1] = kinds[1:] != kinds[:-1]
    return Lane(worker, np.concatenate((edges[:1], edges[1:][last])), kinds[last])


def binned(lane: Lane, end: int, bins: int) -> npt.NDArray[np.float64]:
    """[bin, kind]: the share of each kind of time in each bin, from the start of the run to `end`."""
    places = np.linspace(0, end, bins + 1)
    lengths = np.diff(lane.edges)
    sums = []
    for kind in Time:
        until = np.concatenate(([0], np.cumsum(np.where(lane.kinds == kind, lengths, 0))))
        sums.append(np.diff(np.interp(places, lane.edges, until)))
    return np.column_stack(sums) / max(1e-9, end / bins)


def merged(lane: Lane, most: int) -> Lane:
    """The lane in at most so many spans: if it has more, equal bins in which each kind is one span."""
    if len(lane.kinds) <= most:
        return lane
    bins = max(1, most // len(Time))
    low, high = lane.edges[0], lane.edges[-1]
    moved = lane._replace(edges=lane.edges - low)
    shares = binned(moved, int(high - low), bins) * (high - low) / bins
    edges = low + np.concatenate(([0], np.cumsum(shares.ravel()))).round().astype(np.int64)
    return _tidy(lane.worker, edges, np.tile(np.arange(len(Time)), bins))


def packed(lane: Lane, unit: int) -> str:
    """The lane deflated and in base64: the number of spans, the first edge, a byte per kind, and the lengths.

    Numbers are LEB128, in units of `unit` nanoseconds. Edges are rounded rather than lengths, so that rounding errors
    do not accumulate.
    """
    rounded = np.round(np.maximum(lane.edges, 0) / unit).astype(np.int64)
    small = _tidy(lane.worker, rounded, lane.kinds)
    head = _leb128(np.array([len(small.kinds), small.edges[0]]))
    raw = head + small.kinds.astype(np.uint8).tobytes() + _leb128(np.diff(small.edges))
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def _leb128(numbers: npt.NDArray[np.int64]) -> bytes:
    """Numbers at seven bits per byte, lowest first; the top bit says that more follow."""
    groups = [numbers & 0x7F]
    rest = numbers >> 7
    while rest.any():
        groups.append(rest & 0x7F)
        rest = rest >> 7
    table = np.column_stack(groups)
    length = np.maximum(1, len(groups) - (table[:, ::-1] != 0).argmax(1))
    length[~table.any(1)] = 1
    place = np.arange(len(groups))
    table = table | np.where(place < length[:, None] - 1, 0x80, 0)
    return bytes(table[place < length[:, None]].astype(np.uint8).tobytes())


# The statistics of each run, as in the table, the summary and every export. Pure.


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
