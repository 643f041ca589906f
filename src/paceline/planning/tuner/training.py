"""A trial of a job: trained step by step, evaluated and reported after each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.algorithms.agenda import Agenda
from paceline.errors import TrialFailed, TuningError, suggest
from paceline.planning.tuner.trial import Trial
from paceline.training.jobs.job import Job


class Training(Protocol):
    """A job that is trained in this process, some updates at a time."""

    agenda: Agenda

    def advance(self, updates: int) -> float: ...

    def evaluate(self) -> dict[str, float]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any], settings: bool = True) -> None: ...


@dataclass(frozen=True)
class Measure:
    """What a step is and what its value is."""

    metric: str
    steps_per_epoch: int = 1

    def updates(self, agenda: Agenda, step: int) -> int:
        """Return the updates after which a step ends."""
        return agenda.updates_per_epoch * step // self.steps_per_epoch

    def value(self, figures: dict[str, float]) -> float:
        if self.metric not in figures:
            raise TrialFailed(f"there is no figure {self.metric!r} to tune by; {suggest(self.metric, figures)}")
        return figures[self.metric]

    def epochs(self, job: Job, step: int) -> int:
        """Return the epochs that the job needs to have for it to come to a step."""
        return max(job.epochs, math.ceil(step / self.steps_per_epoch))


class JobObjective:
    """Trains the job that `make_job` makes for a trial; `train` opens a training in this process."""

    def __init__(
        self,
        make_job: Callable[[Trial], Job],
        train: Callable[[Job], Training],
        measure: Measure,
        heeds: frozenset[int] | None,
    ) -> None:
        self.make_job, self.train, self.measure = make_job, train, measure
        #: The steps at which the search decides by a trial's value; None: all. Other steps are not evaluated.
        self.heeds = heeds

    def __call__(self, trial: Trial) -> float:
        training = self.train(self.job(trial))
        if (state := trial.load()) is not None:
            training.restore(state, settings=False)
        elif trial.start:
            training.advance(self.measure.updates(training.agenda, trial.start))
        value = math.nan
        for step in range(trial.start + 1, trial.stop + 1):
            loss = training.advance(self.measure.updates(training.agenda, step))
            if self.wants(step, trial.stop):
                value = self.measure.value({"train_loss": loss, **training.evaluate()})
                trial.report(value, step)
            if trial.should_prune():
                return value
        trial.save(training.state())
        return value

    def wants(self, step: int, stop: int) -> bool:
        """Whether a trial whose leg ends at `stop` is evaluated after a step."""
        return step == stop or self.heeds is None or step in self.heeds

    def job(self, trial: Trial) -> Job:
        """Make the trial's job, with as many epochs as the leg needs."""
        job = self.make_job(trial)
        if not isinstance(job, Job):
            raise TuningError(
                f"make_job returned {type(job).__name__}, not a Job; a function that trains and returns a number is "
                "given as objective="
            )
        # A leg is short, and the next one goes on from its state: what pays for a whole training cannot be chosen here.
        compute = "autograd" if job.compute == "auto" else job.compute
        return job.with_(epochs=self.measure.epochs(job, trial.stop), compute=compute)
