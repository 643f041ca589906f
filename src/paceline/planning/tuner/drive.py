"""The loop between a study, which decides, and what runs its trials."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from paceline.planning.tuner.study import Study
from paceline.planning.tuner.trials import Ended, Trials


class Spent(NamedTuple):
    """Where the time of a tuning went, in seconds."""

    wall: float
    inside: float  # trials' functions, over all workers
    workers: int
    legs: int


def drive(
    study: Study, trials: Trials, seconds: float | None = None, progress: Callable[[Study], object] | None = None
) -> Spent:
    """Run trials until the search has no more, or until no more may begin since the time is over."""
    begin, origin = time.perf_counter(), time.time()
    inside, legs = 0.0, 0
    try:
        while True:
            late = seconds is not None and time.perf_counter() - begin >= seconds
            may_end = late or _give(study, trials)
            if may_end and not study.running:
                break
            for ended in trials.wait():
                _record(study, ended, origin)
                inside, legs = inside + ended.seconds, legs + 1
            if progress is not None:
                progress(study)
    finally:
        trials.close()
    return Spent(time.perf_counter() - begin, inside, trials.workers, legs)


def _give(study: Study, trials: Trials) -> bool:
    """Give legs to workers that are free; return whether there was one, or none was needed."""
    free = trials.free()
    for worker in free:
        if (assignment := study.next(worker)) is None:
            break
        trials.start(assignment, worker)
    return bool(free)


def _record(study: Study, ended: Ended, origin: float) -> None:
    span = None
    if ended.span is not None:
        worker, began, until = ended.span
        span = (worker, began - origin, until - origin)
    study.end(
        ended.trial,
        ended.value,
        stopped=ended.stopped,
        reason=ended.reason,
        seconds=ended.seconds,
        suggested=ended.suggested,
        span=span,
    )
