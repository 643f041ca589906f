"""`compare`: plans side by side on your own job, against the best single process and against the ceiling.

These are timed in alternating rounds (A B C, A B C, ...), so that a machine that slows down slows down all of them:

- each plan,
- the *ceiling* of each plan: as many workers, computing batches of the same size, that never communicate,
- one process, with 1 thread and with as many as there are cores; speed-ups are over the best of them.

The folder of a comparison holds comparison.json, the table; report.html, the page; and the folders of its runs.
"""

from __future__ import annotations

import math
import os
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paceline.api.overhead import Case, step, verdict
from paceline.api.train import RUNS, train
from paceline.errors import CrowdedWarning, UsageError
from paceline.jobs.job import Job
from paceline.plans.plan import Plan, make
from paceline.runs.comparison import ComparisonRecord, Row, Step
from paceline.runs.folder import emptied, new_folder
from paceline.runs.json_files import write_json
from paceline.runs.machine import this_machine
from paceline.runs.run import Run
from paceline.runs.schema import to_dict

Say = Callable[[str], None]
DEFAULT_PLANS = ("sequential", "ddp", "ring", "downpour")
SHORT = 0.7  # seconds of one timed round by default
ACCURACY = "test_accuracy"


@dataclass
class Comparison:
    """The table of a comparison, and the runs it came from."""

    job: str
    rows: list[Row]
    best_single: str
    best_single_samples_per_second: float
    common_accuracy: float | None
    rounds: int
    notes: list[str] = field(default_factory=list)  # what makes the figures doubtful
    path: Path | None = None
    page: Path | None = None
    runs: list[Run] = field(repr=False, default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The table as `paceline compare --json` prints it."""
        found: dict[str, Any] = to_dict(self.record())
        return {key: value for key, value in found.items() if key not in ("machine", "schema_version")}

    def record(self) -> ComparisonRecord:
        """The table as comparison.json holds it."""
        return ComparisonRecord(
            job=self.job,
            best_single=self.best_single,
            best_single_samples_per_second=self.best_single_samples_per_second,
            rounds=self.rounds,
            plans=tuple(self.rows),
            common_accuracy=self.common_accuracy,
            notes=tuple(self.notes),
            path=str(self.path) if self.path else None,
            page=str(self.page) if self.page else None,
            machine=this_machine(),
        )


@dataclass
class _Entrant:
    """A plan to be timed on the job."""

    name: str
    plan: Plan
    job: Job
    speeds: list[float] = field(default_factory=list)  # samples per second, per round
    updates: int | None = None  # of one round; None before the first
    waited: list[float] = field(default_factory=list)  # per round, share of the workers' time without a core

    def race(self, seconds: float) -> None:
        """Train for about so many seconds; the first round finds out how many updates that is."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CrowdedWarning)  # it was given when the whole job was trained
            self._race(seconds)

    def _race(self, seconds: float) -> None:
        if self.updates is None:
            first = train(self.job, self.plan, folder=None, updates=20 * self.plan.workers)
            summary = first.record.summary
            assert summary is not None
            self.updates = max(20, math.ceil(seconds * summary.updates / summary.seconds))
        # As many epochs as it takes: the round's length is in `updates`.
        job = self.job.with_(epochs=10**6)
        summary = train(job, self.plan, folder=None, updates=self.updates).record.summary
        assert summary is not None
        self.speeds.append(summary.samples_per_second)
        self.waited.append(summary.core_wait_fraction)

    @property
    def speed(self) -> float:
        """Samples per second: the median of the rounds."""
        return statistics.median(self.speeds)

    @property
    def doubt(self) -> float:
        """Half the range of the rounds, as a share of the median."""
        return (max(self.speeds) - min(self.speeds)) / 2 / self.speed


def compare(
    job: Job,
    plans: Sequence[str | Plan] = DEFAULT_PLANS,
    workers: int | None = 2,
    *,
    seconds: float | None = None,
    folder: str | Path | None = RUNS,
    say: Say = lambda line: None,
) -> Comparison:
    """Train the whole job by every plan, then time all plans in alternating rounds.

    seconds   timed seconds per plan, in five rounds; without it three short rounds
    folder    where the comparison's folder goes, with the runs' in it; None writes nothing to disk
    say       a function that is called with lines of text about the progress
    """
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"seconds={seconds}: give how many seconds each plan is timed, such as 20")
    if not plans:
        raise UsageError("there are no plans to compare; name some, as in ring,downpour")
    job.refuse_unused()
    chosen = [Plan.parse(plan, workers) for plan in plans]
    job = job if job.on_nan == "skip" else job.with_(on_nan="ignore")  # a plan that diverges is a result
    place = new_folder(Path(folder), f"{job.name}-comparison") if folder is not None else None
    runs = []
    with emptied(place):
        for plan in chosen:
            say(f"training {job.name} by {plan} ...")
            runs.append(train(job, plan, folder=place))
    rounds, length = (5, seconds / 5) if seconds else (3, SHORT)
    timed = _time(job.untested(), chosen, rounds, length, say)
    found = _comparison(job.name, timed, runs, rounds, place)
    if place is not None:
        found.page = _write(found, place)
    return found


@dataclass
class _Timed:
    """Everything that was timed."""

    plans: list[_Entrant]
    singles: list[_Entrant]  # one process, with different numbers of threads
    ceilings: dict[_Ceiling, _Entrant]

    @property
    def best_single(self) -> _Entrant:
        """The fastest single process, which speed-ups are over."""
        return max(self.singles, key=lambda single: single.speed)


def _time(job: Job, plans: Sequence[Plan], rounds: int, length: float, say: Say) -> _Timed:
    """Time plans, single processes and ceilings in alternating rounds of so many seconds."""
    entrants = [_Entrant(str(plan), plan, job) for plan in plans]
    singles = [_Entrant(f"{t} thread{'s' * (t > 1)}", make("sequential", threads=t), job) for t in _thread_counts()]
    kinds = {_ceiling_of(job, plan) for plan in plans}
    timed = _Timed(entrants, singles, {kind: kind.entrant(job) for kind in kinds if kind.workers > 1})
    for number in range(rounds):
        say(f"timing, round {number + 1} of {rounds} ...")
        for entrant in (*entrants, *singles, *timed.ceilings.values()):
            entrant.race(length)
    return timed


def _comparison(name: str, timed: _Timed, runs: list[Run], rounds: int, place: Path | None) -> Comparison:
    best, common = timed.best_single, _common_accuracy(runs)
    rows = [
        _row(entrant, run, best, timed.ceilings.get(_ceiling_of(entrant.job, entrant.plan)), common)
        for entrant, run in zip(timed.plans, runs, strict=True)
    ]
    notes = _notes([*timed.plans, *timed.singles])
    return Comparison(name, rows, best.name, best.speed, common, rounds, notes, place, runs=runs)


CROWDED = 0.05  # share of their time for which workers wait for a core of their own, from which on a note says so


def _notes(entrants: Sequence[_Entrant]) -> list[str]:
    """Say what makes the figures doubtful: other programs used the cores."""
    cores = len(os.sched_getaffinity(0))
    fitting = [e for e in entrants if e.plan.workers * e.plan.threads <= cores]
    waited = statistics.median([share for entrant in fitting for share in entrant.waited] or [0.0])
    if waited < CROWDED:
        return []
    return [
        f"other programs were running on this machine: workers that had a core each waited for it {waited:.0%} of "
        "their time. Speeds on a quiet machine may be others"
    ]


def _write(found: Comparison, place: Path) -> Path:
    """Write the table and the page."""
    from paceline.report import write

    write_json(place / "comparison.json", to_dict(found.record()))
    (page,) = write([place], place / "report.html")
    return page


def _thread_counts() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return sorted({1, 2, cores} & set(range(1, cores + 1)))


class _Ceiling(NamedTuple):
    """The kind of workers that a plan's ceiling is made of; several plans may share one."""

    workers: int
    batch: int  # samples that one worker computes at once

    def entrant(self, job: Job) -> _Entrant:
        """Make the plan that measures this ceiling."""
        plan = make("ceiling", workers=self.workers)
        return _Entrant(f"ceiling of {self.workers} x {self.batch}", plan, job.with_(batch_size=self.batch))


def _ceiling_of(job: Job, plan: Plan) -> _Ceiling:
    return _Ceiling(plan.workers, math.ceil(job.batch_size / plan.parts) if plan.workers > 1 else job.batch_size)


def _common_accuracy(runs: Sequence[Run]) -> float | None:
    """Return the best test accuracy that every run reached; None if one was not evaluated."""
    reached = [[e.metrics[ACCURACY] for e in run.record.history if ACCURACY in e.metrics] for run in runs]
    return min((max(each) for each in reached), default=None) if all(reached) else None


def _seconds_to(run: Run, accuracy: float | None) -> float | None:
    if accuracy is None:
        return None
    return next((e.seconds for e in run.record.history if e.metrics.get(ACCURACY, -1.0) >= accuracy), None)


def _row(entrant: _Entrant, run: Run, best: _Entrant, ceiling: _Entrant | None, common: float | None) -> Row:
    speed, plan, summary = entrant.speed, entrant.plan, run.record.summary
    assert summary is not None
    mine = step(run.trace, plan.workers) if plan.traits.traced else None
    return Row(
        plan=entrant.name,
        workers=plan.workers,
        samples_per_second=speed,
        spread=(min(entrant.speeds), max(entrant.speeds)),
        speedup=speed / best.speed,
        efficiency=speed / best.speed / plan.workers,
        ceiling_share=speed / ceiling.speed if ceiling else None,
        test_accuracy=summary.metrics.get(ACCURACY),
        test_loss=summary.metrics.get("test_loss"),
        seconds_to_common_accuracy=_seconds_to(run, common),
        staleness=summary.staleness.mean,
        bytes_per_update=summary.bytes_sent / max(1, summary.updates),
        wait_fraction=summary.wait_fraction,
        step=mine,
        verdict=_verdict(entrant, mine, best, ceiling) if ceiling else None,
        run=summary.run,
    )


def _verdict(entrant: _Entrant, mine: Step | None, best: _Entrant, ceiling: _Entrant) -> str | None:
    plan, batch = entrant.plan, entrant.job.batch_size
    samples = batch * plan.workers // plan.parts
    return verdict(
        Case(
            plan.name, plan.workers, entrant.speed, ceiling.speed, best.speed, best.name, samples, batch, mine,
            max(entrant.doubt, ceiling.doubt, best.doubt),
        )
    )  # fmt: skip
