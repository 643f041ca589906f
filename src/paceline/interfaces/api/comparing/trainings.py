"""The whole trainings of a comparison, one by every plan.

A plan that is refused, or that fails, is noted with its reason, and the others go on. Ctrl-C ends the trainings; what
was trained until then is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import PacelineError, RunStopped
from paceline.plans.plan import Plan
from paceline.runtime.runs.comparison import FailedPlan
from paceline.runtime.runs.run import Run


@dataclass
class Trainings:
    """The plans that have trained the job, with their runs, and those that have failed."""

    plans: list[Plan] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    failed: list[FailedPlan] = field(default_factory=list)
    interrupted: bool = False

    @property
    def ends_here(self) -> bool:
        """Whether Ctrl-C ended the trainings before there was anything to compare a plan with."""
        return self.interrupted and all(plan.workers > 1 for plan in self.plans)


def train_by_all(plans: Sequence[Plan], by: Callable[[Plan], Run], place: Path | None) -> Trainings:
    """Train by every plan. Raise what the first one raised if all fail, or one process, which all are compared with."""
    done, first = Trainings(), None
    for plan in plans:
        before = _folders(place)
        try:
            done.runs.append(by(plan))
            done.plans.append(plan)
        except RunStopped:
            raise
        except PacelineError as error:
            if plan.workers == 1:
                raise
            first = first or error
            done.failed.append(failed(plan, error, next(iter(_folders(place) - before), None)))
        except KeyboardInterrupt:
            done.interrupted = True
            if done.ends_here:
                raise
            break
    if first is not None and not done.runs:
        raise first
    return done


def failed(plan: Plan, error: PacelineError, run: str | None = None) -> FailedPlan:
    """Return the line of a plan that has raised an error."""
    lines = str(error).strip().splitlines() or [""]
    return FailedPlan(str(plan), plan.workers, f"{type(error).__name__}: {lines[0].rstrip('.')}", run)


def _folders(place: Path | None) -> set[str]:
    return set() if place is None else {str(path) for path in place.iterdir() if path.is_dir()}
