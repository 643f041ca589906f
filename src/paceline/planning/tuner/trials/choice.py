"""Which executor runs trials: as was asked for, or the one that a measurement favours."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from paceline.planning.tuner.study import Assignment, Study
from paceline.planning.tuner.training import JobObjective
from paceline.planning.tuner.trial import Terms, Trial
from paceline.planning.tuner.trials import Ended, Objective, Report, Trials, run_leg
from paceline.planning.tuner.trials.dispatch import Dispatcher, WorkerPool
from paceline.planning.tuner.trials.peers import Peers, RankInfo, SearchOutcome
from paceline.planning.tuner.trials.processes import Processes
from paceline.planning.tuner.trials.stacked import LIMIT, Stacked, limited
from paceline.runtime.engines.workers.process import starts_at_once
from paceline.training.data.source import TensorSource
from paceline.training.gradients.fastest_stack import Forms
from paceline.training.gradients.vmap_stack import CannotStack, shape_of
from paceline.training.jobs.job import Job, threads

# Trials in the process that decides, one after another: nothing is started, and nothing is sent.


class Here:
    """Runs each leg when it is waited for. One that takes longer than the `timeout` in seconds, if any, has failed.

    Trials that were found to be `short` run with one thread, as they were timed, and always have a limit.
    """

    workers = 1

    def __init__(
        self,
        objective: Objective,
        report: Report,
        terms: Terms,
        timeout: float | None = None,
        short: bool = False,
    ) -> None:
        self.objective, self.report, self.terms = objective, report, terms
        self._short, self._limit = short, timeout or (LIMIT if short else None)
        self._given: Assignment | None = None

    def free(self) -> Sequence[int]:
        return () if self._given else (0,)

    def start(self, assignment: Assignment, worker: int) -> None:
        self._given = assignment

    def wait(self) -> Sequence[Ended]:
        assignment, self._given = self._given, None
        assert assignment is not None
        trial = assignment.leg.trial
        with contextlib.ExitStack() as stack:
            if self._short:
                stack.enter_context(threads(1))
            if self._limit:
                stack.enter_context(limited(self._limit))
            return [
                run_leg(self.objective, assignment, self.terms, lambda step, value: self.report(trial, step, value), 0)
            ]

    def close(self) -> None:
        """There is nothing to end."""


RANKS = "processes"  # what `auto` means for several ranks
EXECUTORS = ("auto", "processes", "stacked", "distributed", "here")
FEW = 4  # trials of an architecture, with fewer of which stacking is not looked at
PREVIEWED = 16  # configurations by which architectures are distinguished
LOOK = 0.05  # seconds for which a separate training is timed
STARTING, COPIED = 3.0, 0.3  # seconds until processes that import PyTorch can begin, and copies of one that has


class ExecutorOptions(NamedTuple):
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
    rank_info: RankInfo | None = None

    @property
    def cores(self) -> int:
        return self.workers or max(1, len(os.sched_getaffinity(0)) // (self.each * self.ranks))

    def start_pool(self) -> Processes:
        """Start this rank's workers."""
        return Processes(self.objective, self.terms, self.cores, self.each > 1, 1 if self.rank_info else 0)


class Chosen(NamedTuple):
    """What runs the trials of a tuning."""

    name: str
    trials: Trials
    #: Seconds until it could begin.
    start: float
    #: Why it was chosen; empty if it was asked for.
    why: str


def choose(executor: str, options: ExecutorOptions, study: Study) -> Chosen:
    """Return what runs trials as was asked for, or as a measurement favours."""
    begin = time.perf_counter()
    forms = Forms()
    if executor != "auto":
        name, why = executor, ""
    elif options.rank_info is not None:
        name, why = RANKS, ""
    else:
        name, why = _measured(options, study, forms)
    trials: Trials
    if name == "here":
        trials = Here(options.objective, study.report, options.terms, options.timeout, short=bool(why))
    elif name == "stacked":
        work, pool = options.objective, partial(_dispatcher, options, study)
        assert isinstance(work, JobObjective)
        trials = Stacked(work, study.report, options.terms, forms.stack, pool, options.timeout)
    else:
        trials = _dispatcher(options, study)
    return Chosen(name, trials, time.perf_counter() - begin, why)


def _dispatcher(options: ExecutorOptions, study: Study) -> Dispatcher:
    return Dispatcher(_pool(options, study), study.report, options.timeout, ahead=not study.proposals.learns)


def _pool(options: ExecutorOptions, study: Study) -> WorkerPool:
    """Start the workers of this rank; the first of several ranks lets the others come."""
    rank_info = options.rank_info
    if rank_info is None:
        return options.start_pool()
    processes = options.start_pool() if rank_info.works else None
    peers = Peers(
        processes,
        rank_info,
        options.terms,
        lambda: SearchOutcome(study.trials, study.best.number if study.best else None),
    )
    rank_info.listening(peers.hub.address, options.objective)
    return peers


def _measured(options: ExecutorOptions, study: Study, forms: Forms) -> tuple[str, str]:
    """Return the executor that is expected to be done first, by the seconds of the first configurations, and why."""
    if not isinstance(options.objective, JobObjective):
        return "processes", "a function that contains its own training is not timed"
    try:
        apart, together, reason = _timed(options.objective, options, study, forms)
    except (Exception, SystemExit) as error:  # of the user's own job, which will fail as a trial and say why
        return "processes", f"the first configurations could not be timed: {type(error).__name__}"
    starting = COPIED if starts_at_once() else STARTING
    return fastest(apart, together, study.total, options.cores, reason, starting)


def fastest(
    apart: float, together: float | None, trials: int, cores: int, reason: str, starting: float = STARTING
) -> tuple[str, str]:
    """Return the executor by which so many trials are expected to be done first, and why.

    `apart` are the seconds of a trial in a process, `together` those of one in a stack; None, with a `reason`, where
    trials cannot be stacked. `starting` are the seconds until processes can begin.
    """
    seconds = {"here": trials * apart, "processes": starting + trials * apart / min(cores, trials)}
    if together is not None:
        seconds["stacked"] = trials * together
    estimates = ", ".join(f"{name} {spent:.2g} s" for name, spent in seconds.items())
    return min(seconds, key=seconds.__getitem__), f"expected for {trials} trials: {estimates}{reason}"


def _timed(
    objective: JobObjective, options: ExecutorOptions, study: Study, forms: Forms
) -> tuple[float, float | None, str]:
    """Return the seconds of a trial of the first configurations in a process and in stacks, or why there are none.

    Those that cannot be stacked run in processes in either case, and are not counted.
    """
    job, shapes, reason = _shapes(objective, options, study)
    previewed = sum(len(jobs) for jobs, _ in shapes.values())
    if previewed < FEW * max(1, len(shapes)):
        if shapes:
            reason = CannotStack(f"the first {previewed} configurations have {len(shapes)} architectures")
        shapes = {}
    together = apart = 0.0
    for shape, (jobs, source) in shapes.items():
        share = len(jobs) / previewed
        try:
            with limited(options.timeout):
                stacked = forms.seconds(shape, jobs, source, max(1, int(share * study.total)))
                alone = _apart(objective, jobs[0])
        except (Exception, SystemExit) as error:
            reason = error
            continue
        together, apart = together + share * stacked, apart + share * alone
    if together:
        return apart, together, ""
    if job is None:
        raise reason
    with limited(options.timeout):
        return _apart(objective, job), None, f"; not stacked: {reason or type(reason).__name__}"


def _shapes(
    objective: JobObjective, options: ExecutorOptions, study: Study
) -> tuple[Job | None, dict[str, tuple[list[Job], TensorSource]], BaseException]:
    """Return the first job that can be made, the first jobs by their shape, and why others have none."""
    first: Job | None = None
    shapes: dict[str, tuple[list[Job], TensorSource]] = {}
    reason: BaseException = CannotStack("no configuration is known before it begins")
    for number in range(min(PREVIEWED, study.total)):
        configuration = study.proposals.preview(number)
        if configuration is None:
            break
        try:
            with limited(options.timeout):
                job = objective.job(Trial(number, configuration, 0, 1, options.terms))
                first = first or job
                shape, source = shape_of(job)
        except (Exception, SystemExit) as error:
            reason = error
            continue
        shapes.setdefault(shape, ([], source))[0].append(job)
    return first, shapes, reason


def _apart(objective: JobObjective, job: Job) -> float:
    """Return the seconds for which a process with one thread sets a job up and trains it."""
    with threads(1):
        origin = time.perf_counter()
        training = objective.train(job)
        training.advance(1)
        done, begin = 1, time.perf_counter()
        while done < training.agenda.updates and time.perf_counter() - begin < LOOK:
            done = min(2 * done, training.agenda.updates)
            training.advance(done)
        update = (time.perf_counter() - begin) / max(1, done - 1)
        return begin - origin + update * (training.agenda.updates - 1)
