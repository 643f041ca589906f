"""Which way trials are run: as was asked for, or the one that a measurement favours."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from paceline.gradients.fastest_stack import fastest_stack, seconds_per_update
from paceline.gradients.stacking import CannotStack, shape_of
from paceline.tuner.study import Study
from paceline.tuner.training import JobObjective, Measure
from paceline.tuner.trial import Trial
from paceline.tuner.trials import Objective, Report, Terms, Trials
from paceline.tuner.trials.here import Here
from paceline.tuner.trials.processes import Processes
from paceline.tuner.trials.stacked import Stacked

WAYS = ("auto", "processes", "stacked", "distributed", "here")
FEW = 4  # trials, with fewer of which stacking is not looked at
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


def choose(asked: str, way: Way, study: Study) -> tuple[str, Trials, float]:
    """Return (the way's name, what runs trials, the seconds until it could begin)."""
    begin = time.perf_counter()
    name = _measured(way, study) if asked == "auto" else asked
    trials: Trials
    if name in ("here", "distributed"):
        trials = Here(way.objective, way.report, way.terms)
    elif name == "stacked":
        assert isinstance(way.objective, JobObjective)
        trials = Stacked(way.objective, way.report, way.terms, fastest_stack)
    else:
        ahead = not study.proposals.learns
        trials = Processes(way.objective, way.report, way.terms, way.cores, way.timeout, ahead)
    return name, trials, time.perf_counter() - begin


def _measured(way: Way, study: Study) -> str:
    """Return the faster one of processes and stacked trials for the first configurations."""
    if not isinstance(way.objective, JobObjective) or study.total < FEW:
        return "processes"
    try:
        jobs = []
        for number in range(FEW):
            configuration = study.proposals.preview(number)
            if configuration is not None:
                jobs.append(way.objective.job(Trial(number, configuration, 0, 1, way.terms.seed)))
        keys = {shape_of(job)[0] for job in jobs}
        if len(jobs) < FEW or len(keys) > 1:
            return "processes"
        together = seconds_per_update(jobs, shape_of(jobs[0])[1]) / len(jobs)
    except CannotStack:
        return "processes"
    except Exception:  # of the user's own job, which will fail as a trial and say why
        return "processes"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        training = way.objective.train(jobs[0])
        training.advance(2)
        begin = time.perf_counter()
        training.advance(2 + LOOK)
        apart = (time.perf_counter() - begin) / LOOK / way.cores
    finally:
        torch.set_num_threads(before)
    return "stacked" if together < apart else "processes"
