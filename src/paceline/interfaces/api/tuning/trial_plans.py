"""A trial that is itself a parallel run, trained by a plan.

The tuner decides alone: the workers of a run never see the search, so they cannot disagree about a stop, and none
waits for another's answer. A run that is stopped is ended as by a callback that raises.

A trial that goes on in a later leg is a run that is resumed from its checkpoint. Under population-based training it may
be another trial's: so replicas with different settings, each with servers of its own, exchange what they have learned.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.algorithms.agenda import Agenda
from paceline.errors import JobWarning, TrialStopped
from paceline.interfaces.api.train import train
from paceline.interfaces.callbacks import Training
from paceline.planning.tuner.training import JobObjective, Measure
from paceline.planning.tuner.trial import Trial
from paceline.plans.plan import Plan
from paceline.runtime.engines import checkpoints
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.record import Evaluation

LAST = 1 << 40  # updates between checkpoints, so that there is one at the end alone


class PlannedObjective:
    """Trains the job of a trial by a plan on the local engine, from its beginning or from the end of a leg."""

    def __init__(self, jobs: JobObjective, plan: str, timeout: float | None) -> None:
        self.jobs, self.plan, self.timeout = jobs, Plan.parse(plan), timeout or 120.0

    def unable(self) -> str:
        """Return why trials cannot go on from another's checkpoint; an empty string if they can."""
        if self.jobs.measure.steps_per_epoch > 1:
            return "a run is resumed at the end of an epoch: leave steps_per_epoch out"
        why = self.plan.traits.no_checkpoints
        return why and f"plan {self.plan.name} keeps no checkpoints: {why}"

    def __call__(self, trial: Trial) -> float:
        if trial.states is not None and not self.unable():
            return self._from_checkpoint(trial, trial.states)
        return self._from_beginning(trial)

    def _from_checkpoint(self, trial: Trial, states: Path) -> float:
        job = self.jobs.job(trial).with_(epochs=trial.stop)
        checkpoint = states / f"{trial.number}-{trial.stop}"
        with tempfile.TemporaryDirectory(prefix="draft-", dir=states) as draft, warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)
            if trial.start:
                place = Path(draft, "run")
                shutil.copytree(states / f"{trial.source}-{trial.start}", place)
                module = job.make_model()
                checkpoints.change_settings(place, job.make_optimizer(module, list(module.parameters())))
                run = train(job, resume=place, epochs=trial.stop, timeout=self.timeout)
            else:
                run = train(job, self.plan, timeout=self.timeout, folder=draft, checkpoint_every=LAST)
            value = self.jobs.measure.value(run.summary())
            assert run.path is not None
            shutil.rmtree(checkpoint, ignore_errors=True)  # of a leg that begins again
            os.replace(run.path, checkpoint)
        return value

    def _from_beginning(self, trial: Trial) -> float:
        job, measure = self.jobs.job(trial), self.jobs.measure
        agenda = set_up(job, Plan.parse("sequential"), "virtual").agenda
        reporting = Reporting(trial, measure, agenda)
        callbacks: list[Any] = []
        if self.jobs.heeds != frozenset() and job.test is not None and not self.plan.traits.no_checkpoints:
            job = job.with_(evaluate_every=measure.updates(agenda, 1))
            callbacks = [reporting]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)
            run = train(
                job,
                self.plan,
                max_updates=measure.updates(agenda, trial.stop),
                timeout=self.timeout,
                folder=None,
                callbacks=callbacks,
            )
        return measure.value(run.summary())


@dataclass
class Reporting:
    """Reports each evaluation of a run to the study, and ends the run when the study says so."""

    trial: Trial
    measure: Measure
    agenda: Agenda
    #: The steps whose evaluations were reported.
    reported: set[int] = field(default_factory=set)

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        step = next((s for s in self._open() if self.measure.updates(self.agenda, s) <= evaluation.updates), None)
        if step is None:
            return
        self.reported.add(step)
        self.trial.report(self.measure.value(evaluation.metrics), step)
        if self.trial.should_prune():
            raise TrialStopped(f"trial {self.trial.number} is stopped after step {step}")

    def _open(self) -> list[int]:
        return [s for s in range(self.trial.start + 1, self.trial.stop + 1) if s not in self.reported][:1]
