"""The rows of a comparison's table, from what was timed and from the whole trainings."""

from __future__ import annotations

from paceline.interfaces.api.comparing.overhead import Case, step, unmeasured, verdict
from paceline.interfaces.api.comparing.timing import Entrant, Ratio, Timed
from paceline.runtime.runs.comparison import Row, Step
from paceline.runtime.runs.held import common_level, seconds_to_hold
from paceline.runtime.runs.intervals import wilson
from paceline.runtime.runs.run import Run

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


def _verdict(timed: Timed, entrant: Entrant, ceiling: Entrant, speedup: Ratio, mine: Step | None) -> str | None:
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
