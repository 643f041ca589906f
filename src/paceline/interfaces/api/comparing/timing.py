"""Times plans, single processes and ceilings in interleaved rounds, so that a busy machine slows down all of them.

    round 1     downpour   ring   1 thread   2 threads   ceiling of 2 x 50
    round 2     ceiling of 2 x 50   2 threads   1 thread   ring   downpour          and so on, to and fro

A figure is never made of two rounds: a speed-up is the median of each round's own.
"""

from __future__ import annotations

import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from paceline.errors import CrowdedWarning, JobWarning, PacelineError, RunStopped
from paceline.interfaces.api.comparing.progress import Course
from paceline.interfaces.api.train import train
from paceline.plans.plan import Plan, make
from paceline.runtime.runs.comparison import FailedPlan
from paceline.runtime.runs.record import Summary
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.verdict import PAYS, SETTLED, Interval, median_interval, steady
from paceline.training.jobs.job import Job

SHORT = 0.4  # seconds of a round by default
LONG = 3.0  # seconds of a round, where there is time for more than LEAST of them
LEAST, MOST = 5, 25  # rounds
FIRST = 2  # rounds after which it is said how fast plans are so far
ENOUGH = 13  # rounds by default, at most: from then on intervals leave out three rounds at each end
MORE = "the rounds disagree; timing a further one, round"
PATIENCE = 60.0  # seconds of timing after which no round is added
UPDATES = 20  # of a round, at least
LONGER = 4  # times that a round is made longer, at most
WARM = 0.5  # share of a round's samples that must lie after its warm-up; with less, the next round is longer


class TimingRounds(NamedTuple):
    """How many rounds there are, and how many seconds each plan is timed in one of them.

    By default further rounds follow while the intervals are wide, whatever they say, up to `most` in all.
    """

    rounds: int
    seconds: float
    most: int = 0

    @staticmethod
    def of(seconds: float | None) -> TimingRounds:
        """Divide the seconds of a plan over rounds: more rounds settle more than longer ones."""
        if seconds is None:
            return TimingRounds(LEAST, SHORT, ENOUGH)
        rounds = min(MOST, max(LEAST, round(seconds / LONG)))
        return TimingRounds(rounds, seconds / rounds)


@dataclass
class Entrant:
    """A plan to be timed on a job."""

    name: str
    plan: Plan
    job: Job
    #: Samples per second of each round.
    speeds: list[float] = field(default_factory=list)
    #: Share of the workers' time without a core, per round.
    waited: list[float] = field(default_factory=list)
    #: Updates of a round; None until a run has told how many fit into one.
    updates: int | None = None
    #: How often a round was made longer, since most of it was warm-up.
    longer: int = 0
    #: The whole training by this plan; None for what is timed beside the plans.
    run: Run | None = None

    def time_round(self, seconds: float) -> None:
        """Train for about so many seconds."""
        with warnings.catch_warnings():
            for category in (CrowdedWarning, JobWarning):  # when the whole job was trained
                warnings.simplefilter("ignore", category)
            if self.updates is None:
                self.learn_from(
                    train(self.job, self.plan, folder=None, max_updates=UPDATES * self.plan.workers), seconds
                )
            # As many epochs as it takes: the round's length is in `updates`.
            run = train(self.job.with_(epochs=10**6), self.plan, folder=None, max_updates=self.updates)
        speed, share = _speed(run)
        self.speeds.append(speed)
        self.waited.append(_summary(run).core_wait_fraction)
        if share < WARM and self.longer < LONGER:
            self.updates, self.longer = 2 * (self.updates or UPDATES), self.longer + 1

    def end_after(self, rounds: int) -> None:
        """Leave out what follows so many rounds; without any, the speed is that of the whole training."""
        self.speeds, self.waited = self.speeds[:rounds], self.waited[:rounds]
        if not self.speeds and self.run is not None:
            self.speeds, self.waited = [_speed(self.run)[0]], [_summary(self.run).core_wait_fraction]

    def learn_from(self, run: Run, seconds: float) -> None:
        """Find out from a training by this plan how many updates a round of so many seconds has."""
        summary, (speed, _) = _summary(run), _speed(run)
        each = summary.samples / max(1, summary.updates)
        self.updates = max(UPDATES, math.ceil(seconds * speed / each))

    @property
    def speed(self) -> float:
        """Samples per second: the median of the rounds."""
        return statistics.median(self.speeds)

    def over(self, other: Entrant) -> Ratio:
        """How many times as fast this is as another, round by round."""
        return Ratio.of(self.speeds, other.speeds)

    @property
    def threads(self) -> str:
        """The threads of each worker, such as `2 threads`."""
        return f"{self.plan.threads} thread{'s' * (self.plan.threads > 1)}"


class Ratio(NamedTuple):
    """The median of the rounds' ratios, with its interval."""

    value: float
    interval: Interval

    @classmethod
    def of(cls, these: Sequence[float], others: Sequence[float]) -> Ratio:
        """Divide the speeds of each round by others of the same round."""
        ratios = [mine / its for mine, its in zip(these, others, strict=True)]
        return cls(statistics.median(ratios), median_interval(ratios))

    @property
    def doubt(self) -> float:
        """Half the interval, as a share of the value."""
        return self.interval.half / self.value


class Ceiling(NamedTuple):
    """The kind of workers that a plan's ceiling is made of; several plans may share one."""

    workers: int
    batch: int  # samples that one worker computes at once

    @staticmethod
    def of(job: Job, plan: Plan) -> Ceiling:
        """Return the ceiling of a plan: as many workers, which compute pieces of the same size."""
        return Ceiling(plan.workers, math.ceil(job.batch_size / plan.parts) if plan.workers > 1 else job.batch_size)

    def entrant(self, job: Job) -> Entrant:
        """Make the plan that measures this ceiling."""
        plan = make("ceiling", workers=self.workers)
        return Entrant(f"ceiling of {self.workers} x {self.batch}", plan, job.with_(batch_size=self.batch))


@dataclass
class Timed:
    """Everything that was timed, in the same rounds."""

    plans: list[Entrant]
    singles: list[Entrant]  # one process, with different numbers of threads
    ceilings: dict[Ceiling, Entrant]
    failed: list[FailedPlan] = field(default_factory=list)
    rounds: int = 0  # that are whole
    interrupted: bool = False  # by Ctrl-C

    @property
    def entrants(self) -> list[Entrant]:
        """All that is timed; one process that is a plan, too, is timed once."""
        return list({id(each): each for each in (*self.plans, *self.singles, *self.ceilings.values())}.values())

    def leave(self, entrant: Entrant, error: PacelineError) -> None:
        """Leave out an entrant that has failed."""
        if entrant in self.plans:
            run = entrant.run.path if entrant.run else None
            self.failed.append(failed(entrant.plan, error, str(run) if run else None))
        self.plans = [each for each in self.plans if each is not entrant]
        self.ceilings = {kind: each for kind, each in self.ceilings.items() if each is not entrant}

    def interrupt(self) -> None:
        """End with what whole rounds have measured; without any, with what the trainings have."""
        self.interrupted = True
        for entrant in self.entrants:
            entrant.end_after(self.rounds)
        self.plans, self.singles = ([each for each in some if each.speeds] for some in (self.plans, self.singles))
        self.ceilings = {kind: each for kind, each in self.ceilings.items() if each.speeds}

    @property
    def core_wait(self) -> float:
        """The median share of their time for which workers waited for a core, where there was one for each."""
        cores = len(os.sched_getaffinity(0))
        fitting = [each for each in (*self.plans, *self.singles) if each.plan.workers * each.plan.threads <= cores]
        return statistics.median([share for entrant in fitting for share in entrant.waited] or [0.0])

    @property
    def best_single(self) -> Entrant:
        """The fastest single process, which speed-ups are over."""
        return max(self.singles, key=lambda single: single.speed)

    def ceiling_of(self, entrant: Entrant) -> Entrant | None:
        """The ceiling of a plan; None for one process."""
        return self.ceilings.get(Ceiling.of(entrant.job, entrant.plan))

    @property
    def settled(self) -> bool:
        """Whether the intervals are narrow enough for a verdict, and none leaves open if its plan pays."""
        single = self.best_single
        return all(ratio.doubt <= SETTLED for ratio in self._ratios()) and not any(
            interval.low <= 1 and interval.high >= PAYS
            for interval in (plan.over(single).interval for plan in self.plans if plan.plan.workers > 1)
        )

    @property
    def at_first(self) -> str:
        """How fast the whole trainings were beside that of one process; empty where one of these is missing."""
        speeds = [(each, _speed(each.run)[0]) for each in self.plans if each.run is not None]
        alone = max((speed for each, speed in speeds if each.plan.workers == 1), default=math.inf)
        ratios = [(speed / alone, each.name) for each, speed in speeds if each.plan.workers > 1 and alone < math.inf]
        return _beside_one("in the whole trainings", [(ratio, f"{name} {ratio:.2f}") for ratio, name in ratios])

    @property
    def so_far(self) -> str:
        """How fast plans are beside the best single process, as far as it is known; empty without such plans."""
        ratios = [(each.name, each.over(self.best_single)) for each in self.plans if each.plan.workers > 1]
        figures = [
            (each.value, f"{name} {each.value:.2f} ({each.interval.low:.2f} to {each.interval.high:.2f})")
            for name, each in ratios
        ]
        return _beside_one(f"after {self.rounds} rounds", figures)

    def _ratios(self) -> Iterator[Ratio]:
        for plan in self.plans:
            yield plan.over(self.best_single)
            if (ceiling := self.ceiling_of(plan)) is not None:
                yield plan.over(ceiling)


def _beside_one(when: str, figures: list[tuple[float, str]]) -> str:
    """Say how many times as fast as one process plans are, the fastest first; empty without any."""
    texts = [text for _, text in sorted(figures, key=itemgetter(0), reverse=True)]
    return f"{when}, times as fast as one process: {', '.join(texts)}" if texts else ""


def time_plans(job: Job, plans: Sequence[Plan], runs: Sequence[Run], schedule: TimingRounds, course: Course) -> Timed:
    """Time plans, single processes and ceilings in interleaved rounds; `runs` are whole trainings by these plans.

    Ctrl-C ends it after the last whole round. If there is none, the speeds are those of the trainings.
    """
    timed = entrants_of(job, plans, runs)
    for entrant, run in zip(timed.plans, runs, strict=True):
        entrant.learn_from(run, schedule.seconds)
    if sentence := timed.at_first:
        course.say(sentence)
    begin = time.monotonic()
    try:
        for number in range(max(schedule.rounds, schedule.most)):
            if number >= schedule.rounds and (timed.settled or time.monotonic() - begin > PATIENCE):
                break
            further = number >= schedule.rounds
            text = f"{MORE} {number + 1}" if further else f"timing, round {number + 1} of {schedule.rounds}"
            _time_round(timed, number, text, schedule, course)
            timed.rounds = number + 1
            if timed.rounds == FIRST and (sentence := timed.so_far):
                course.say(sentence)
    except KeyboardInterrupt:
        timed.interrupt()
        if not timed.singles:
            raise
    return timed


def entrants_of(job: Job, plans: Sequence[Plan], runs: Sequence[Run] = ()) -> Timed:
    """Return what is timed: plans, single processes and ceilings."""
    trained: Iterator[Run | None] = iter(runs)
    entrants = [_entrant(job, plan, next(trained, None)) for plan in plans]
    kinds = {Ceiling.of(job, each.plan): each.job for each in entrants}
    ceilings = {kind: kind.entrant(kinds[kind]) for kind in sorted(kinds) if kind.workers > 1}
    return Timed(entrants, [_single(job, threads, entrants) for threads in thread_counts()], ceilings)


def _entrant(job: Job, plan: Plan, run: Run | None) -> Entrant:
    """A plan, which computes in each round as it did in its whole training."""
    return Entrant(str(plan), plan, job.with_(compute=run.record.compute) if run else job, run=run)


def _time_round(timed: Timed, number: int, text: str, schedule: TimingRounds, course: Course) -> None:
    """Time every entrant once; one that fails leaves, and the others go on."""
    # Backwards in every second round: what slows the machine down steadily hits the first and the last alike.
    for entrant in timed.entrants[:: -1 if number % 2 else 1]:
        course.begin(text, course.cost.start + schedule.seconds, entrant.name)
        try:
            entrant.time_round(schedule.seconds)
        except RunStopped:
            raise
        except PacelineError as error:
            # Without one process there is nothing to compare with.
            if entrant.plan.workers == 1:
                raise
            timed.leave(entrant, error)


def _single(job: Job, threads: int, entrants: Sequence[Entrant]) -> Entrant:
    """One process; if the plan is compared anyway, it is timed once."""
    same = (e for e in entrants if (e.plan.name, e.plan.threads, e.plan.chunks) == ("sequential", threads, 1))
    entrant = next(same, None)
    return entrant if entrant is not None else Entrant("sequential", make("sequential", threads=threads), job)


def thread_counts() -> list[int]:
    """Return the numbers of threads that one process is tried with."""
    cores = len(os.sched_getaffinity(0))
    return sorted({1, 2, cores} & set(range(1, cores + 1)))


def _speed(run: Run) -> tuple[float, float]:
    """Samples per second after the warm-up, and the share of the samples that lie there."""
    steady_state, summary = steady(run.trace), _summary(run)
    return (steady_state.samples_per_second, steady_state.share) if steady_state else (summary.samples_per_second, 0.0)


def _summary(run: Run) -> Summary:
    summary = run.record.summary
    assert summary is not None
    return summary


# --- The whole trainings of a comparison, one by every plan -----------------------------------------------------------
# A plan that is refused, or that fails, is noted with its reason, and the others go on. Ctrl-C ends the trainings; what
# was trained until then is the result.


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
