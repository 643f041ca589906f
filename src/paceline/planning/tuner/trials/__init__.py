"""Ways to run trials: each takes assignments of a study and returns how their legs ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from paceline.errors import PacelineError, TrialFailed, TrialStopped
from paceline.errors.failure import users_traceback
from paceline.planning.tuner.space import Configuration
from paceline.planning.tuner.study import Assignment, Study
from paceline.planning.tuner.trial import Reporter, Terms, Trial

#: Runs one leg of a trial: reports values, and returns the last one, or None where it has reported it.
Objective = Callable[[Trial], float | None]
#: Tells a study the value of a trial after a step: (trial, step, value) -> whether the trial is to stop.
Report = Callable[[int, int, float], bool]


@dataclass(frozen=True)
class Ended:
    """How a leg ended; without a value it failed."""

    trial: int
    value: float | None
    stopped: bool = False
    reason: str = ""
    seconds: float = 0.0
    suggested: Configuration = field(default_factory=dict)
    #: (worker, begin, end), by the wall clock.
    span: tuple[int, float, float] | None = None


class Trials(Protocol):
    """Something that runs legs."""

    #: The processes that do so.
    workers: int

    def free(self) -> Sequence[int]:
        """Return the workers that can take a leg now."""

    def start(self, assignment: Assignment, worker: int) -> None:
        """Let a worker train this leg."""

    def wait(self) -> Sequence[Ended]:
        """Wait until at least one leg has ended, and pass on reports meanwhile."""

    def close(self) -> None:
        """End all workers."""


def run_leg(objective: Objective, assignment: Assignment, terms: Terms, reporter: Reporter, worker: int) -> Ended:
    """Run a trial's function; whatever it raises is the reason why this trial, and no other, failed."""
    leg = assignment.leg
    trial = Trial(leg.trial, assignment.configuration, leg.start, leg.stop, terms, reporter, leg.source)
    began, clock = time.time(), time.perf_counter()

    def ended(value: float | None, reason: str = "") -> Ended:
        seconds = time.perf_counter() - clock
        span = (worker, began, began + seconds)
        return Ended(leg.trial, value, trial.stopped and value is not None, reason, seconds, trial.suggested, span)

    try:
        value = _value(objective(trial), trial)
    except TrialStopped:
        return ended(trial.value)
    except TrialFailed as error:
        return ended(None, str(error))
    except (Exception, SystemExit) as error:
        if trial.stopped and _means_pruned(error):
            return ended(trial.value)
        return ended(None, reason_of(error))
    return ended(value) if math.isfinite(value) else ended(None, f"its value is {value}")


def _value(returned: Any, trial: Trial) -> float:
    if returned is not None:
        return float(returned)
    if trial.step == trial.start:
        raise TrialFailed("its function returned nothing and reported nothing")
    return trial.value


def _means_pruned(error: BaseException) -> bool:
    """Whether the function left because it was stopped, by Optuna's exception."""
    return type(error).__name__ == "TrialPruned"


def reason_of(error: BaseException) -> str:
    """Say why a trial failed, with the user's own lines."""
    reason = str(error) if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
    return f"{reason}\n{users_traceback(error)}".rstrip() if not isinstance(error, PacelineError) else reason


# The loop between a study, which decides, and what runs its trials.


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
