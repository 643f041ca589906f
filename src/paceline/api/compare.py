"""`compare`: plans side by side on your own job, against the best single process and against the ceiling.

What is timed, in turn (A B C, A B C, ...), so that a machine that slows down slows all of them down:

- each plan,
- the *ceiling* of each plan: as many workers, computing batches of the same size, that never meet,
- one process, with 1 thread and with as many as there are cores; the best of them is what a speed-up is against.

A comparison has a folder: comparison.json, what is in the table; report.html, the page; and its runs' own folders.
"""

from __future__ import annotations

import math
import os
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.api.overhead import Case, Step, step, verdict
from paceline.api.train import RUNS, train
from paceline.errors import CrowdedWarning, UsageError
from paceline.jobs.job import Job
from paceline.plans.plan import Plan, make
from paceline.runs.run import Run, emptied, machine, new_folder, write_json

Say = Callable[[str], None]
DEFAULT_PLANS = ("sequential", "ddp", "ring", "downpour")
SHORT = 0.7  # seconds of one timed round, unless the user says how long


@dataclass
class Row:
    """One plan's line of the table."""

    plan: str
    workers: int
    samples_per_second: float
    spread: tuple[float, float]
    ceiling_share: float | None
    speedup: float
    efficiency: float
    test_accuracy: float | None
    test_loss: float | None
    seconds_to_common_accuracy: float | None
    staleness: float
    bytes_per_update: float
    wait_fraction: float
    step: Step | None  # where a worker's step goes; None for ddp, which does not tell
    verdict: str | None  # why these workers do not pay; None where they do
    run: str | None


@dataclass
class Comparison:
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
        found = {key: value for key, value in self.__dict__.items() if key not in ("rows", "runs")}
        paths = {key: str(found[key]) if found[key] else None for key in ("path", "page")}
        return {**found, **paths, "plans": [asdict(row) for row in self.rows]}


@dataclass
class _Entrant:
    """Somebody to be timed: a plan on the job, for `updates` updates a round."""

    name: str
    plan: Plan
    job: Job
    speeds: list[float] = field(default_factory=list)
    updates: int | None = None
    waited: list[float] = field(default_factory=list)  # share of the workers' time without a core, round by round

    def race(self, seconds: float) -> None:
        """One round: train for about so many seconds; the first finds out how many updates that is."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CrowdedWarning)  # it was said when the whole job was trained
            self._race(seconds)

    def _race(self, seconds: float) -> None:
        if self.updates is None:
            first = train(self.job, self.plan, folder=None, updates=20 * self.plan.workers)
            summary = first.summary()
            self.updates = max(20, math.ceil(seconds * summary["updates"] / summary["seconds"]))
        # As many epochs as it takes: the round's length is in `updates`.
        job = self.job.with_(epochs=10**6)
        summary = train(job, self.plan, folder=None, updates=self.updates).summary()
        self.speeds.append(summary["samples_per_second"])
        self.waited.append(summary["core_wait_fraction"])

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds)

    @property
    def doubt(self) -> float:
        """Half the range of its rounds, as a share of the median."""
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
    """Train the whole job by every plan, then time them all in turn.

    seconds   timed seconds per plan, in five rounds; without it three short rounds
    folder    where the comparison's folder goes, with the runs' in it; None keeps nothing on disk
    say       is told in plain lines what goes on
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
    bare = job.untested()
    entrants = [_Entrant(str(plan), plan, bare) for plan in chosen]
    singles = [_Entrant(f"{t} thread{'s' * (t > 1)}", make("sequential", threads=t), bare) for t in _thread_counts()]
    ceilings = {key: _ceiling(bare, *key) for key in {_ceiling_key(bare, plan) for plan in chosen} if key[0] > 1}
    for number in range(rounds):
        say(f"timing, round {number + 1} of {rounds} ...")
        for entrant in (*entrants, *singles, *ceilings.values()):
            entrant.race(length)
    best = max(singles, key=lambda single: single.speed)
    common = _common_accuracy(runs)
    rows = [
        _row(entrant, run, best, ceilings.get(_ceiling_key(bare, entrant.plan)), common)
        for entrant, run in zip(entrants, runs, strict=True)
    ]
    notes = _notes([*entrants, *singles])
    found = Comparison(job.name, rows, best.name, best.speed, common, rounds, notes, place, runs=runs)
    if place is not None:
        found.page = _keep(found, place)
    return found


CROWDED = 0.05  # of their time for which workers wait for a core that is theirs


def _notes(entrants: Sequence[_Entrant]) -> list[str]:
    """What makes the figures doubtful: somebody else used the cores."""
    cores = len(os.sched_getaffinity(0))
    fitting = [e for e in entrants if e.plan.workers * e.plan.threads <= cores]
    waited = statistics.median([share for entrant in fitting for share in entrant.waited] or [0.0])
    if waited < CROWDED:
        return []
    return [
        f"something else was running on this machine: workers that had a core each waited for it {waited:.0%} of their "
        "time. Speeds on a quiet machine may be others"
    ]


def _keep(found: Comparison, place: Path) -> Path:
    """Write the table and the page."""
    from paceline.report import write

    write_json(place / "comparison.json", {**found.as_dict(), "machine": machine()})
    (page,) = write([place], place / "report.html")
    return page


def _thread_counts() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return sorted({1, 2, cores} & set(range(1, cores + 1)))


def _ceiling_key(job: Job, plan: Plan) -> tuple[int, int]:
    """(workers, samples that one worker computes in one piece)"""
    return plan.workers, math.ceil(job.batch_size / plan.parts) if plan.workers > 1 else job.batch_size


def _ceiling(job: Job, workers: int, batch: int) -> _Entrant:
    return _Entrant(f"ceiling of {workers} x {batch}", make("ceiling", workers=workers), job.with_(batch_size=batch))


def _common_accuracy(runs: Sequence[Run]) -> float | None:
    """The best test accuracy that every run reached."""
    best = [max((h["test_accuracy"] for h in run.history if "test_accuracy" in h), default=None) for run in runs]
    return None if not best or None in best else min(b for b in best if b is not None)


def _seconds_to(run: Run, accuracy: float | None) -> float | None:
    if accuracy is None:
        return None
    return next((h["seconds"] for h in run.history if h.get("test_accuracy", -1.0) >= accuracy), None)


def _row(entrant: _Entrant, run: Run, best: _Entrant, ceiling: _Entrant | None, common: float | None) -> Row:
    summary, speed, plan = run.summary(), entrant.speed, entrant.plan
    mine = step(run.trace, plan.workers) if plan.traits.traced else None
    return Row(
        plan=entrant.name,
        workers=plan.workers,
        samples_per_second=speed,
        spread=(min(entrant.speeds), max(entrant.speeds)),
        ceiling_share=speed / ceiling.speed if ceiling else None,
        speedup=speed / best.speed,
        efficiency=speed / best.speed / plan.workers,
        test_accuracy=summary.get("test_accuracy"),
        test_loss=summary.get("test_loss"),
        seconds_to_common_accuracy=_seconds_to(run, common),
        staleness=summary["staleness"]["mean"],
        bytes_per_update=summary["bytes_sent"] / max(1, summary["updates"]),
        wait_fraction=summary["wait_fraction"],
        step=mine,
        verdict=_verdict(entrant, mine, best, ceiling) if ceiling else None,
        run=summary["run"],
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
