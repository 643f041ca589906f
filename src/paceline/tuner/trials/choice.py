"""Which way trials are run: as was asked for, or the one that a measurement favours."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from paceline.data.source import TensorSource
from paceline.gradients.fastest_stack import fastest_stack, seconds_stacked
from paceline.gradients.stacking import CannotStack, shape_of
from paceline.jobs.job import Job
from paceline.tuner.study import Study
from paceline.tuner.training import JobObjective, Measure
from paceline.tuner.trial import Trial
from paceline.tuner.trials import Objective, Report, Terms, Trials
from paceline.tuner.trials.here import Here
from paceline.tuner.trials.processes import Processes
from paceline.tuner.trials.stacked import Stacked

WAYS = ("auto", "processes", "stacked", "distributed", "here")
FEW = 4  # trials of an architecture, with fewer of which stacking is not looked at
PREVIEWED = 16  # configurations by which architectures are told apart
LOOK = 60  # updates that are timed


class Way(NamedTuple):
    """What trials are run with."""

    objective: Objective
    report: Report
    terms: Terms
    workers: int | None
    timeout: float | None
    make_job: Callable[..., Any] | None
    measure: Measure

    @property
    def cores(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))


class Chosen(NamedTuple):
    """What runs the trials of a tuning."""

    name: str
    trials: Trials
    #: Seconds until it could begin.
    start: float
    #: Why it was chosen; empty if it was asked for.
    why: str


def choose(asked: str, way: Way, study: Study) -> Chosen:
    """Return what runs trials as was asked for, or as a measurement favours."""
    begin = time.perf_counter()
    name, why = _measured(way, study) if asked == "auto" else (asked, "")
    trials: Trials
    if name in ("here", "distributed"):
        trials = Here(way.objective, way.report, way.terms)
    elif name == "stacked":
        assert isinstance(way.objective, JobObjective)
        trials = Stacked(way.objective, way.report, way.terms, fastest_stack)
    else:
        ahead = not study.proposals.learns
        trials = Processes(way.objective, way.report, way.terms, way.cores, way.timeout, ahead)
    return Chosen(name, trials, time.perf_counter() - begin, why)


def _measured(way: Way, study: Study) -> tuple[str, str]:
    """Return the faster one of processes and stacked trials for the first configurations, and why."""
    if not isinstance(way.objective, JobObjective):
        return "processes", "a function that trains by itself is not stacked"
    if study.total < FEW:
        return "processes", f"stacking is not looked at for fewer than {FEW} trials"
    try:
        together, apart = _timed(way.objective, way, study)
    except CannotStack as reason:
        return "processes", f"the trials are not stacked: {reason}"
    except Exception as error:  # of the user's own job, which will fail as a trial and say why
        return "processes", f"the first configurations could not be stacked: {type(error).__name__}"
    times = f"stacked, a trial takes {together:.3g} s of this machine, and in processes {apart:.3g} s"
    if together < apart:
        return "stacked", f"{times}: {apart / together:.1f} times as fast"
    return "processes", f"{times}: stacking does not pay here"


def _timed(objective: JobObjective, way: Way, study: Study) -> tuple[float, float]:
    """Return the seconds of a trial of the first configurations in stacks, and those in processes."""
    shapes: dict[str, tuple[list[Job], TensorSource]] = {}
    for number in range(min(PREVIEWED, study.total)):
        configuration = study.proposals.preview(number)
        if configuration is None:
            raise CannotStack("a configuration is known only when it begins")
        job = objective.job(Trial(number, configuration, 0, 1, way.terms.seed))
        key, source = shape_of(job)
        shapes.setdefault(key, ([], source))[0].append(job)
    previewed = sum(len(jobs) for jobs, _ in shapes.values())
    if previewed < FEW * len(shapes):
        raise CannotStack(f"the first {previewed} configurations have {len(shapes)} architectures")
    together = apart = 0.0
    for jobs, source in shapes.values():
        share = len(jobs) / previewed
        together += share * seconds_stacked(jobs[:FEW], source, int(share * study.total))
        apart += share * _apart(objective, jobs[0]) / way.cores
    return together, apart


def _apart(objective: JobObjective, job: Job) -> float:
    """Return the seconds for which a process with one thread trains a job."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        training = objective.train(job)
        training.advance(2)
        begin = time.perf_counter()
        training.advance(2 + LOOK)
        return (time.perf_counter() - begin) / LOOK * training.agenda.updates
    finally:
        torch.set_num_threads(before)
