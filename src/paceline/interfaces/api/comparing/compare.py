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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline.errors import UsageError, is_positive, whole
from paceline.errors.arguments import check_arguments
from paceline.interfaces.api.comparing.compare_link import LINK_PLANS, check_plans, simulate_plans
from paceline.interfaces.api.comparing.progress import Cost, Course, Progress
from paceline.interfaces.api.comparing.result import Case, Comparison, step, unmeasured, verdict
from paceline.interfaces.api.comparing.timing import (
    Entrant,
    Ratio,
    Timed,
    TimingRounds,
    entrants_of,
    time_plans,
    train_by_all,
)
from paceline.interfaces.api.fusing import can_fuse, settled
from paceline.interfaces.api.lines import Say, to_stderr
from paceline.interfaces.api.train import RUNS, train
from paceline.plans.plan import Plan
from paceline.runtime.runs.comparison import ComparisonRecord, Row, StepTimes, Timing
from paceline.runtime.runs.record import emptied, new_folder, this_machine
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.schema import to_dict, write_json
from paceline.runtime.runs.verdict import common_level, decided, seconds_to_hold, wilson
from paceline.training.gradients.probe import probing_once
from paceline.training.jobs.job import Job, checked

# The rows of a comparison's table, from what was timed and from the whole trainings.

ACCURACY = "test_accuracy"


def rows_of(timed: Timed) -> list[Row]:
    """Return the rows of all plans that were timed."""
    trained = [(entrant, entrant.run) for entrant in timed.plans if entrant.run is not None]
    common = common_level([run.record.history for _, run in trained], ACCURACY)
    return [_row(timed, entrant, run, common) for entrant, run in trained]


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


def _verdict(timed: Timed, entrant: Entrant, ceiling: Entrant, speedup: Ratio, mine: StepTimes | None) -> str | None:
    """Why the workers do not pay; None where they do."""
    plan, batch, best = entrant.plan, entrant.job.batch_size, timed.best_single
    samples = batch * plan.workers // plan.parts
    # All three are of the same rounds: the ceiling as many times as fast as one process as it was in each of them.
    speed, limit = speedup.value * best.speed, ceiling.over(best)
    return verdict(
        Case(
            plan.name,
            plan.workers,
            speed,
            limit.value * best.speed,
            best.speed,
            best.threads,
            samples,
            batch,
            mine,
            max(speedup.doubt, limit.doubt),
        )
    )


DEFAULT_PLANS = ("sequential", "ddp", "ring", "downpour")
WORKERS, LINKED_WORKERS = 2, 4  # of plans that do not state it


def compare(
    job: Job,
    plans: Sequence[str | Plan] | None = None,
    workers: int | None = None,
    *,
    seconds: float | None = None,
    link: str | None = None,
    quality_limit: float | None = None,
    folder: str | Path | None = RUNS,
    say: Say = to_stderr,
    progress: Progress | None = None,
    command: str = "",
) -> Comparison:
    """Train the whole job by every plan, then time all plans in interleaved rounds.

    A plan that is refused or fails has a line with its reason, and the others go on. Ctrl-C writes what was measured
    and raises a KeyboardInterrupt whose only argument is that comparison.

    Args:
        job: The job.
        plans: Plans or their names. Default: `DEFAULT_PLANS`; with `link`, `LINK_PLANS`.
        workers: The number of workers of plans that do not state it. Default: 2; with `link`, 4.
        seconds: Timed seconds per plan, in rounds of about three. Default: five short rounds, and
            up to eight more while the rounds disagree, for about a minute in all.
        link: A network between machines like this one, as in `"100Mbit,1ms"`. Times are then simulated: computing and
            coding are measured here, the network is a clock's, and every plan trains with its real arithmetic.
        quality_limit: How much a plan that is recommended may lose against one process: test accuracy as a share of 1,
            or, for a job without an accuracy, test loss as a share of it. Default: 0.05 of accuracy, 0.1 of loss.
        folder: Where the folder of the comparison is created, with its runs; None writes nothing to disk.
        say: A function that is called with lines about the progress, an estimate first. Default: prints to stderr.
        progress: A function that is called with the share that is done, and with what is done next, in place of lines.
        command: The command that trains this job, without a plan; the recommendation quotes it.
    """
    check_arguments(compare, {"link": link, "folder": folder, "say": say, "progress": progress, "command": command})
    chosen = _chosen(plans, workers, seconds, link)
    if quality_limit is not None and not (is_positive(quality_limit) and quality_limit < math.inf):
        raise UsageError(f"quality_limit={quality_limit!r}: give the share that may be lost, such as 0.05")
    checked(job).refuse_unused()
    job = job if job.on_nan == "skip" else job.with_(on_nan="ignore")  # a plan that diverges is a result
    place = new_folder(Path(folder), f"{job.name}-comparison") if folder is not None else None
    with emptied(place), probing_once():
        alone = settled(job) if link is None else _of_nodes(job)
        course = Course(Cost.of(alone), say, progress)
        record, runs = (
            _here(job, alone, chosen, seconds, place, course)
            if link is None
            else simulate_plans(alone, chosen, link, place, course)
        )
    record = replace(record, seconds=seconds, command=command, quality_limit=quality_limit)
    comparison = Comparison(decided(_completed(record, runs, place)), runs)
    if place:
        _write(comparison.table, place)
    if record.interrupted:
        raise KeyboardInterrupt(comparison)
    return comparison


def _completed(record: ComparisonRecord, runs: Sequence[Run], place: Path | None) -> ComparisonRecord:
    """Return the record with what follows from all of its runs, and where it is written."""
    return replace(
        record,
        notes=(*_diverged(record.plans, runs), *record.notes),
        path=str(place) if place else None,
        page=str(place / "report.html") if place else None,
        machine=this_machine(),
        test_samples=runs[0].record.job.test_samples,
        common_accuracy=common_level([run.record.history for run in runs], ACCURACY),
    )


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
    if workers == 1:
        raise UsageError(
            "workers=1: a comparison is of plans with several workers, beside which one process is always timed; give "
            "2 or more"
        )
    if not plans:
        raise UsageError("there are no plans to compare; name some, as in ring,downpour")
    chosen = [Plan.parse(plan, workers or (LINKED_WORKERS if link else WORKERS)) for plan in plans]
    if link is not None:
        if seconds is not None:
            raise UsageError("seconds= times plans on this machine; with link= the network is simulated")
        check_plans(chosen, link)
    return chosen


def _of_nodes(job: Job) -> Job:
    """Return the job as nodes of a cluster compute it."""
    return job.with_(compute="autograd") if job.compute == "auto" else job


def _here(
    job: Job, alone: Job, plans: Sequence[Plan], seconds: float | None, place: Path | None, course: Course
) -> tuple[ComparisonRecord, list[Run]]:
    """Compare on the processes of this machine; `alone` is the job as one process computes it."""
    schedule = TimingRounds.of(seconds)
    course.announce(len(plans), len(entrants_of(job, plans).entrants), schedule)

    def by(plan: Plan) -> Run:
        course.begin(f"training {job.name} by {plan}", course.cost.training)
        return train(job, plan, folder=place)

    done = train_by_all(plans, by, place)
    if done.interrupted:
        timed = entrants_of(alone, done.plans, done.runs)
        timed.interrupt()
    else:
        timed = time_plans(alone.untested(), done.plans, done.runs, schedule, course)
    record = ComparisonRecord(
        job=job.name,
        best_single=timed.best_single.threads,
        best_single_samples_per_second=timed.best_single.speed,
        rounds=timed.rounds,
        plans=tuple(rows_of(timed)),
        notes=tuple(_ways(job, done.runs)),
        singles=tuple(Timing(single.threads, tuple(single.speeds)) for single in timed.singles),
        ceilings=tuple(Timing(each.name, tuple(each.speeds)) for each in timed.ceilings.values()),
        failed=(*done.failed, *timed.failed),
        core_wait=timed.core_wait,
        interrupted=timed.interrupted,
    )
    return record, [entrant.run for entrant in timed.plans if entrant.run is not None]


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


def _ways(job: Job, runs: Sequence[Run]) -> list[str]:
    """Say how gradients were computed, or that generated code, which was not compared, can compute the job."""
    if job.compute == "auto":
        return list(dict.fromkeys(run.record.notes[-1] for run in runs))
    if job.compute == "fused" or not can_fuse(job):
        return []
    return [
        "gradients were computed by PyTorch; generated code can compute this job, too, and is often faster for small "
        "networks: compute='auto' (`--compute auto`) takes it where it is"
    ]


def _write(record: ComparisonRecord, place: Path) -> None:
    """Write the table and the page."""
    from paceline.runtime.report import write

    write_json(place / "comparison.json", to_dict(record))
    write([place], place / "report.html")
