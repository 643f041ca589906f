"""Which way trials are run: as was asked for, or the one that a measurement favours."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import torch

from paceline.data.source import TensorSource
from paceline.gradients.fastest_stack import fastest_stack, seconds_stacked
from paceline.gradients.stacking import CannotStack, shape_of
from paceline.jobs.job import Job
from paceline.tuner.study import Study
from paceline.tuner.training import JobObjective
from paceline.tuner.trial import Trial
from paceline.tuner.trials import Objective, Terms, Trials
from paceline.tuner.trials.here import Here
from paceline.tuner.trials.peers import Peers, Place
from paceline.tuner.trials.processes import Processes
from paceline.tuner.trials.stacked import Stacked
from paceline.tuner.trials.team import Crew, Team

RANKS = "processes"  # what `auto` means for several ranks
WAYS = ("auto", "processes", "stacked", "distributed", "here")
FEW = 4  # trials of an architecture, with fewer of which stacking is not looked at
PREVIEWED = 16  # configurations by which architectures are distinguished
LOOK = 60  # updates that are timed


class Way(NamedTuple):
    """What trials are run with."""

    objective: Objective
    terms: Terms
    workers: int | None
    timeout: float | None
    #: The processes of each trial, if it is itself a parallel run.
    each: int = 1
    #: The ranks on this machine, which share its cores.
    ranks: int = 1
    #: Where the ranks of a launcher or of Ray meet, if there are several.
    place: Place | None = None

    @property
    def cores(self) -> int:
        return self.workers or max(1, len(os.sched_getaffinity(0)) // (self.each * self.ranks))

    def crew(self) -> Processes:
        """Start this rank's workers."""
        return Processes(self.objective, self.terms, self.cores, self.each > 1, 1 if self.place else 0)


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
    name, why = (asked, "") if asked != "auto" else _measured(way, study) if way.place is None else (RANKS, "")
    trials: Trials
    if name == "here":
        trials = Here(way.objective, study.report, way.terms)
    elif name == "stacked":
        assert isinstance(way.objective, JobObjective)
        trials = Stacked(way.objective, study.report, way.terms, fastest_stack)
    else:
        trials = Team(_crew(way, study), study.report, way.timeout, ahead=not study.proposals.learns)
    return Chosen(name, trials, time.perf_counter() - begin, why)


def _crew(way: Way, study: Study) -> Crew:
    """Start the workers of this rank; the first of several ranks lets the others come."""
    place = way.place
    if place is None:
        return way.crew()
    own = way.crew() if place.works else None
    peers = Peers(own, place, way.terms, lambda: (study.trials, study.best and study.best.number))
    place.listening(peers.hub.address, way.objective)
    return peers


def _measured(way: Way, study: Study) -> tuple[str, str]:
    """Return the faster one of processes and stacked trials for the first configurations, and why."""
    if not isinstance(way.objective, JobObjective):
        return "processes", "a function that contains its own training is not stacked"
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
    return "processes", f"{times}: stacking is slower here"


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
