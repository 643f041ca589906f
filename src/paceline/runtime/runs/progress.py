"""What an engine reports while workers train, and the status of the run, a line per worker. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from paceline.runtime.runs.time_accounting import Pace, TimeAccounting
from paceline.runtime.runs.trace import Columns, Kind


@dataclass(frozen=True)
class Progress:
    """The state of a run, passed to `progress=` about ten times a second.

    `rows` are those of the trace that were written since the last report, one array per worker and one row per event
    (see `paceline.runtime.runs.trace`). Everything else is the state at the moment of the report.
    """

    #: Updates made so far, by earlier lives of a resumed run, too.
    updates: int
    #: Updates of the whole run.
    total_updates: int
    #: Training samples seen so far.
    samples: int
    #: Seconds of training so far, by earlier lives, too.
    seconds: float
    #: Mean over the workers of their latest loss; None if no worker computed one since the last report.
    loss: float | None
    #: Number of workers that the run was started with.
    workers: int
    #: Workers that have finished all of their work.
    finished: tuple[int, ...]
    #: Workers whose process died while the others went on.
    dead: tuple[int, ...]
    #: Workers that sleep at this moment, until another one rings.
    asleep: tuple[int, ...]
    #: Per worker, the steps of collectives that it has made so far.
    collective_steps: tuple[int, ...]
    #: Whether no worker can be more than an update ahead of another, since the plan has no gate.
    in_step: bool
    #: Updates that earlier lives of a resumed run had made.
    resumed_updates: int
    #: Seconds of training in earlier lives of a resumed run.
    resumed_seconds: float
    #: Whether a signal has asked the run to stop after the next checkpoint.
    stopping: bool
    #: Rows of the trace since the last report, per worker, and those of deaths.
    rows: tuple[Columns, ...]


ProgressCallback = Callable[[Progress], None]


class Follower(Protocol):
    """What follows a run while it goes on: it gets the progress, reads snapshots, and may end the run."""

    def __call__(self, report: Progress) -> None:
        """Take a report, about ten times a second; what it raises ends the run."""

    def connect(self, snapshot: Callable[[int], Any] | None, stop: Callable[[], None] | None) -> None:
        """Take what reads the snapshot of so many updates, and what ends the run after a checkpoint; or None each."""


# The status of a run that goes on, with a line per worker, computed from the engine's progress reports. Pure.
#
# Figures are those of the last seconds, so a worker that slows down shows at once. A worker that is silent, that is
# writes no rows for long, either is the cause or waits for it. Without a gate the cause is the worker furthest
# behind, by its steps in collectives and its updates; under a gate it is every silent worker that is not asleep
# there.

WINDOW = 10.0  # seconds that the figures are taken over
SILENT = 2.0  # seconds without a row from which on a worker is silent, or ten of its usual steps, whichever is more
REPORTS = 10  # latest reports in which a worker must have been awake: at the gate it wakes from time to time to look
WAITS = 0.2  # share of its time from which on a worker is said to wait for the straggler


@dataclass(frozen=True)
class WorkerLine:
    """What is shown of one worker."""

    number: int
    rate: float  # samples per second
    loss: float
    staleness: float
    waiting: float  # share of its time
    left: float  # seconds; 0 when it has finished
    state: str  # "", "done" or "died"
    remark: str  # that it is a straggler, or which one it waits for


class _Position(NamedTuple):
    """How far a worker was in its last row; the lowest is the furthest behind."""

    update: int = -1
    computed: bool = False  # whether the row came after the gradient of this update


class LiveStatus:
    """Follows a run from report to report."""

    def __init__(self) -> None:
        self.share = self.rate = self.seconds = self.left = 0.0
        self.loss = math.nan
        self.updates = self.total_updates = 0
        self.workers: list[WorkerLine] = []
        self._sums: TimeAccounting | None = None
        #: (seconds, sums until then), from the last report before the window to the newest one.
        self._past: deque[tuple[float, npt.NDArray[np.float64]]] = deque()
        self._asleep: deque[tuple[int, ...]] = deque(maxlen=REPORTS)

    def update(self, report: Progress) -> None:
        """Take in the next report of the engine."""
        sums = self._sums or self._begin(report)
        for rows in report.rows:
            sums.add(rows)
            self._remember(rows)
        self.seconds, self.updates, self.total_updates = report.seconds, report.updates, report.total_updates
        self.share = self.updates / self.total_updates if self.total_updates else 1.0
        self.left = self.seconds * (1 - self.share) / self.share if self.share else math.nan
        self._asleep.append(report.asleep)
        self._past.append((self.seconds, sums.sums.copy()))
        while len(self._past) > 2 and self._past[1][0] <= self.seconds - WINDOW:
            self._past.popleft()
        since, before = self._past[0]
        self._describe(report, Pace(sums.sums - before), max(self.seconds - since, 1e-9))

    def _begin(self, report: Progress) -> TimeAccounting:
        self._sums = sums = TimeAccounting(report.workers)
        self._began = report.resumed_seconds
        self._last_row = np.full(report.workers, self._began)  # seconds at which each worker's last row ended
        self._position = [_Position()] * report.workers
        self._past.append((self._began, sums.sums.copy()))
        return sums

    def _remember(self, rows: Columns) -> None:
        if len(rows) and rows["kind"][-1] not in (Kind.DEATH, Kind.REGROUP):
            last, worker = rows[-1], int(rows["worker"][-1])
            self._last_row[worker] = last["end"] / 1e9
            self._position[worker] = _Position(int(last["update"]), bool(last["kind"] != Kind.COMPUTE))

    def _describe(self, report: Progress, pace: Pace, length: float) -> None:
        """Make the workers' lines from what they did in a window of so many seconds."""
        ended = {**dict.fromkeys(report.finished, "done"), **dict.fromkeys(report.dead, "died")}
        rates, loss, staleness, waiting = pace.of("samples") / length, pace.loss, pace.staleness, pace.waiting
        remarks = self._remarks(report, ended, pace)
        assert self._sums is not None
        pieces = Pace(self._sums.sums).of("pieces")
        absent = {worker for worker in report.dead if not pieces[worker]}  # places that no machine has taken yet
        self.rate = float(rates.sum())
        weight = pace.of("weight").sum()
        self.loss = float(pace.of("loss").sum() / weight) if weight else math.nan
        self.workers = [
            WorkerLine(
                number=worker,
                rate=float(rates[worker]),
                loss=float(loss[worker]),
                staleness=float(staleness[worker]),
                waiting=float(waiting[worker]),
                left=0.0 if worker in ended else self.left,
                state=ended.get(worker, ""),
                remark=remarks.get(worker, ""),
            )
            for worker in range(report.workers)
            if worker not in absent
        ]

    def _remarks(self, report: Progress, ended: dict[int, str], pace: Pace) -> dict[int, str]:
        """Name the stragglers, and which of them the other workers wait for."""
        blamed, victims = self._silent(report, ended)
        remarks = {w: f"straggler: computes at {of:.0%}" for w, of in pace.stragglers().items() if w not in ended}
        # Where several are equally far behind, each of them may be the cause.
        name = "straggler: " if len(blamed) == 1 else ""
        remarks |= {w: f"{name}silent for {self.seconds - self._last_row[w]:.0f} s" for w in blamed}
        stragglers, waiting = list(remarks), pace.waiting
        for worker in range(report.workers):
            waits = worker in victims or waiting[worker] >= WAITS
            if stragglers and worker not in remarks and worker not in ended and waits:
                more = f" or {len(stragglers) - 1} more" if len(stragglers) > 1 else ""
                remarks[worker] = f"waits for worker {stragglers[0]}{more}"
        return remarks

    def _silent(self, report: Progress, ended: dict[int, str]) -> tuple[set[int], set[int]]:
        """Return the silent workers that may be the cause, and those that only wait."""
        assert self._sums is not None
        pieces = Pace(self._sums.sums).of("pieces")
        usual = np.divide(self._last_row - self._began, pieces, out=np.zeros(len(pieces)), where=pieces > 0)
        silent = {
            worker
            for worker in range(report.workers)
            if worker not in ended
            and pieces[worker] > 0
            and self.seconds - self._last_row[worker] > max(SILENT, 10 * usual[worker])
        }
        if report.in_step:
            behind = {worker: (report.collective_steps[worker], self._position[worker]) for worker in silent}
            blamed = {worker for worker in silent if behind[worker] == min(behind.values())}
        else:
            blamed = silent.difference(*self._asleep)
        return blamed, silent - blamed
