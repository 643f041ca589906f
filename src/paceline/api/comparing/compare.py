"""`compare`: plans side by side on your own job, against the best single process and against the ceiling.

Each plan trains the whole job once. Then all are timed in interleaved rounds (`timing`):

- each plan,
- the *ceiling* of each plan: as many workers, computing batches of the same size, that never communicate,
- one process, with 1 thread and with as many as there are cores; speed-ups are over the best of them.

What it comes to is decided by `runs.verdict`. The folder of a comparison holds comparison.json, the table; report.html,
the page; and the folders of its runs.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.api.comparing.compare_link import LINK_PLANS, check_plans, simulate_plans
from paceline.api.comparing.overhead import Case, step, unmeasured, verdict
from paceline.api.comparing.timing import Entrant, Ratio, Say, Schedule, Timed, time_plans
from paceline.api.fusing import can_fuse
from paceline.api.train import RUNS, train
from paceline.errors import PlanError, UsageError, is_positive, whole
from paceline.errors.arguments import check_arguments
from paceline.gradients.probe import probing_once
from paceline.jobs.job import Job, checked
from paceline.plans.plan import Plan
from paceline.runs.comparison import Answer, ComparisonRecord, Row, Step, Timing
from paceline.runs.folder import emptied, new_folder
from paceline.runs.held import common_level, seconds_to_hold
from paceline.runs.intervals import wilson
from paceline.runs.json_files import write_json
from paceline.runs.machine import this_machine
from paceline.runs.run import Run
from paceline.runs.schema import to_dict
from paceline.runs.tables import comparison_table
from paceline.runs.verdict import decided

DEFAULT_PLANS = ("sequential", "ddp", "ring", "downpour")
WORKERS, LINKED_WORKERS = 2, 4  # of plans that do not state it
ACCURACY = "test_accuracy"


@dataclass
class Comparison:
    """The table of a comparison, what it comes to, and the runs it came from."""

    table: ComparisonRecord  # as comparison.json holds it
    runs: list[Run] = field(repr=False, default_factory=list)

    def __repr__(self) -> str:
        plans = ", ".join(row.short for row in self.table.plans)
        return f"Comparison({self.job!r}: {'; '.join([plans, *self._answer()])})"

    def __str__(self) -> str:
        return "\n".join([*filter(None, [self.table.disagreement]), str(comparison_table(self.table)), *self._answer()])

    def _repr_html_(self) -> str:
        return comparison_table(self.table).html(self._answer())

    def _answer(self) -> list[str]:
        return [self.table.answer.sentence] if self.table.answer else []

    @property
    def job(self) -> str:
        """The job's name."""
        return self.table.job

    @property
    def rows(self) -> tuple[Row, ...]:
        """A line of the table per plan."""
        return self.table.plans

    @property
    def best_single(self) -> str:
        """The best single process, such as `2 threads`."""
        return self.table.best_single

    @property
    def best_single_samples_per_second(self) -> float:
        """Its speed."""
        return self.table.best_single_samples_per_second

    @property
    def common_accuracy(self) -> float | None:
        """The best test accuracy that every plan held to its end."""
        return self.table.common_accuracy

    @property
    def rounds(self) -> int:
        """How many rounds were timed."""
        return self.table.rounds

    @property
    def notes(self) -> list[str]:
        """What makes the figures doubtful."""
        return list(self.table.notes)

    @property
    def answer(self) -> Answer:
        """The plan to use, one process, or that it is not settled; `answer.sentence` says which and why."""
        assert self.table.answer is not None
        return self.table.answer

    @property
    def path(self) -> Path | None:
        """The folder; None: nothing was written."""
        return Path(self.table.path) if self.table.path else None

    @property
    def page(self) -> Path | None:
        """The page in the folder."""
        return Path(self.table.page) if self.table.page else None

    def as_dict(self) -> dict[str, Any]:
        """The table as `paceline compare --json` prints it."""
        found: dict[str, Any] = to_dict(self.table)
        return {key: value for key, value in found.items() if key not in ("machine", "schema_version")}


def compare(
    job: Job,
    plans: Sequence[str | Plan] | None = None,
    workers: int | None = None,
    *,
    seconds: float | None = None,
    link: str | None = None,
    folder: str | Path | None = RUNS,
    say: Say = lambda line: None,
    command: str = "",
) -> Comparison:
    """Train the whole job by every plan, then time all plans in interleaved rounds.

    Args:
        job: The job.
        plans: Plans or their names. Default: those of `DEFAULT_PLANS` that take the job; with `link`, `LINK_PLANS`.
        workers: The number of workers of plans that do not state it. Default: 2; with `link`, 4.
        seconds: Timed seconds per plan, in rounds of about three. Default: five short rounds, and
            up to eight more while the rounds disagree, for about a minute in all.
        link: A network between machines like this one, as in `"100Mbit,1ms"`. Times are then simulated: computing and
            coding are measured here, the network is a clock's, and every plan trains with its real arithmetic.
        folder: Where the folder of the comparison is created, with its runs; None writes nothing to disk.
        say: A function that is called with lines of text about the progress.
        command: The command that trains this job, without a plan; the recommendation quotes it.
    """
    check_arguments(compare, {"link": link, "folder": folder, "say": say, "command": command})
    chosen = _chosen(plans, workers, seconds, link)
    checked(job).refuse_unused()
    job = job if job.on_nan == "skip" else job.with_(on_nan="ignore")  # a plan that diverges is a result
    place = new_folder(Path(folder), f"{job.name}-comparison") if folder is not None else None
    with probing_once():
        if link is not None:
            return _over_link(job, chosen, link, place, say, command)
        return _here(job, chosen, plans is not None, seconds, place, say, command)


def _chosen(
    plans: Sequence[str | Plan] | None, workers: int | None, seconds: float | None, link: str | None
) -> list[Plan]:
    """Return the plans to compare; raise UsageError or PlanError for what cannot be compared."""
    if seconds is not None and not (is_positive(seconds) and seconds < math.inf):
        raise UsageError(f"seconds={seconds!r}: give how many seconds each plan is timed, such as 20")
    plans = plans if plans is not None else LINK_PLANS if link else DEFAULT_PLANS
    if isinstance(plans, str | Plan):
        raise UsageError(f"plans={str(plans)!r} is one word; give a list, as in plans=['ring', 'downpour']")
    if not isinstance(plans, Sequence):
        raise UsageError(f"plans={plans!r} is not a list of plans; give one, as in plans=['ring', 'downpour']")
    workers = whole("workers", workers, 1)
    if not plans:
        raise UsageError("there are no plans to compare; name some, as in ring,downpour")
    chosen = [Plan.parse(plan, workers or (LINKED_WORKERS if link else WORKERS)) for plan in plans]
    if link is not None:
        if seconds is not None:
            raise UsageError("seconds= times plans on this machine; with link= the network is simulated")
        check_plans(chosen, link)
    return chosen


def _here(
    job: Job, plans: Sequence[Plan], asked: bool, seconds: float | None, place: Path | None, say: Say, command: str
) -> Comparison:
    """Compare on the processes of this machine; a plan that was not asked for is left out where it is refused."""
    runs, kept, left_out = [], [], []
    with emptied(place):
        for plan in plans:
            say(f"training {job.name} by {plan} ...")
            try:
                runs.append(train(job, plan, folder=place))
            except PlanError as error:
                if asked or plan.workers == 1:
                    raise
                left_out.append(f"{plan.name} is left out: {error}")
                continue
            kept.append(plan)
            if job.compute == "auto":
                say(runs[-1].record.notes[-1])
    timed = time_plans(job.untested(), kept, runs, Schedule.of(seconds), say)
    page = place / "report.html" if place else None
    record = ComparisonRecord(
        job=job.name,
        best_single=timed.best_single.threads,
        best_single_samples_per_second=timed.best_single.speed,
        rounds=len(timed.best_single.speeds),
        plans=tuple(_rows(timed, runs)),
        common_accuracy=common_level([run.record.history for run in runs], ACCURACY),
        notes=(*left_out, *_notes([*timed.plans, *timed.singles]), *_other_ways(job)),
        path=str(place) if place else None,
        page=str(page) if page else None,
        machine=this_machine(),
        singles=tuple(Timing(single.threads, tuple(single.speeds)) for single in timed.singles),
        ceilings=tuple(Timing(each.name, tuple(each.speeds)) for each in timed.ceilings.values()),
        test_samples=runs[0].record.job.test_samples,
        seconds=seconds,
        command=command,
    )
    return _finished(record, runs)


def _finished(record: ComparisonRecord, runs: list[Run]) -> Comparison:
    """Decide, and write the table and the page."""
    found = Comparison(decided(replace(record, notes=(*_diverged(record.plans, runs), *record.notes))), runs)
    if record.path and record.page:
        _write(found.table, Path(record.path), Path(record.page))
    return found


def _over_link(job: Job, plans: Sequence[Plan], link: str, place: Path | None, say: Say, command: str) -> Comparison:
    """Compare on machines like this one, with a network that is simulated."""
    with emptied(place):
        found = simulate_plans(job, plans, link, place, say)
    record = ComparisonRecord(
        job=job.name, best_single=found.best_single, best_single_samples_per_second=found.best_speed,
        rounds=len(found.rows[0].rounds),
        plans=found.rows, common_accuracy=common_level([run.record.history for run in found.runs], ACCURACY),
        notes=found.notes, path=str(place) if place else None, page=str(place / "report.html") if place else None,
        machine=this_machine(), singles=found.singles, test_samples=found.runs[0].record.job.test_samples,
        command=command, link=link, codecs=found.codecs, dense_bytes=found.dense_bytes,
    )  # fmt: skip
    return _finished(record, found.runs)


def _diverged(rows: Sequence[Row], runs: Sequence[Run]) -> list[str]:
    """Say which trainings came to nothing, which their speed does not tell."""
    losses = [run.record.summary.train_loss if run.record.summary else None for run in runs]
    names = [row.short for row, loss in zip(rows, losses, strict=True) if loss is not None and not math.isfinite(loss)]
    if not names:
        return []
    return [
        f"the training loss was not finite at the end of {', '.join(names)}: look into that before the speed; "
        "`paceline train` stops at the first such loss and names its samples"
    ]


CROWDED = 0.05  # share of their time for which workers wait for a core of their own, from which on a note says so


def _notes(entrants: Sequence[Entrant]) -> list[str]:
    """Say what makes the figures doubtful: other programs used the cores."""
    cores = len(os.sched_getaffinity(0))
    fitting = [e for e in entrants if e.plan.workers * e.plan.threads <= cores]
    waited = statistics.median([share for entrant in fitting for share in entrant.waited] or [0.0])
    if waited < CROWDED:
        return []
    return [
        f"other programs were running on this machine: workers that had a core each waited for it {waited:.0%} of "
        "their time. On a quiet machine the speeds may differ"
    ]


def _other_ways(job: Job) -> list[str]:
    """Say that generated code, which was not compared, can compute the job."""
    if job.compute != "autograd" or not can_fuse(job):
        return []
    return [
        "gradients were computed by PyTorch; generated code can compute this job, too, and is often faster for small "
        "networks: compute='auto' (`--compute auto`) takes it where it is"
    ]


def _write(record: ComparisonRecord, place: Path, page: Path) -> None:
    """Write the table and the page."""
    from paceline.report import write

    write_json(place / "comparison.json", to_dict(record))
    write([place], page)


def _rows(timed: Timed, runs: Sequence[Run]) -> list[Row]:
    common = common_level([run.record.history for run in runs], ACCURACY)
    return [_row(timed, entrant, run, common) for entrant, run in zip(timed.plans, runs, strict=True)]


def _row(timed: Timed, entrant: Entrant, run: Run, common: float | None) -> Row:
    plan, summary, ceiling = entrant.plan, run.record.summary, timed.ceiling_of(entrant)
    assert summary is not None
    speedup, share = entrant.over(timed.best_single), entrant.over(ceiling) if ceiling else None
    mine = step(run.trace, plan.workers) if plan.traits.traced else None
    accuracy, tested = summary.metrics.get(ACCURACY), run.record.job.test_samples
    return Row(
        plan=entrant.name,
        workers=plan.workers,
        samples_per_second=entrant.speed,
        spread=(min(entrant.speeds), max(entrant.speeds)),
        speedup=speedup.value,
        efficiency=speedup.value / plan.workers,
        ceiling_share=share.value if share else None,
        test_accuracy=accuracy,
        test_loss=summary.metrics.get("test_loss"),
        seconds_to_common_accuracy=None if common is None else seconds_to_hold(run.record.history, ACCURACY, common),
        staleness=summary.staleness.mean,
        bytes_per_update=None if summary.bytes_sent is None else summary.bytes_sent / max(1, summary.updates),
        wait_fraction=summary.wait_fraction,
        step=mine,
        verdict=_verdict(timed, entrant, ceiling, speedup, mine) if ceiling else None,
        run=summary.run,
        rounds=tuple(entrant.speeds),
        speedup_interval=tuple(speedup.interval),
        ceiling_share_interval=tuple(share.interval) if share else None,
        test_accuracy_interval=None if accuracy is None else tuple(wilson(accuracy, tested)),
        metrics=summary.metrics,
        unmeasured=None if plan.traits.traced else unmeasured(run.trace, plan.workers),
    )


def _verdict(timed: Timed, entrant: Entrant, ceiling: Entrant, speedup: Ratio, mine: Step | None) -> str | None:
    """Why the workers do not pay; None where they do."""
    plan, batch, best = entrant.plan, entrant.job.batch_size, timed.best_single
    samples = batch * plan.workers // plan.parts
    # All three are of the same rounds: the ceiling as many times as fast as one process as it was in each of them.
    speed, limit = speedup.value * best.speed, ceiling.over(best)
    return verdict(
        Case(
            plan.name, plan.workers, speed, limit.value * best.speed, best.speed, best.threads, samples, batch, mine,
            max(speedup.doubt, limit.doubt),
        )
    )  # fmt: skip
