"""The figures of a run that follow from its trace alone."""

from __future__ import annotations

import numpy as np

from paceline.runtime.runs.record import Staleness, Summary
from paceline.runtime.runs.time_accounting import straggling
from paceline.runtime.runs.trace import Kind, Trace, percentile


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
