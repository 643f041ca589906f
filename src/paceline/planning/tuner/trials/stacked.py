"""Trials side by side in one pass, grouped by what they compute; those that fit in no group run in processes.

All members of a group are trained by one step, then each is evaluated and reported, and those that are stopped, or at
the end of their leg, leave the group.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from paceline.errors import TrialFailed
from paceline.planning.tuner.study import Assignment
from paceline.planning.tuner.training import JobObjective
from paceline.planning.tuner.trial import Terms, Trial
from paceline.planning.tuner.trials import Ended, Report, Trials, reason_of
from paceline.training.data.source import TensorSource
from paceline.training.gradients.fastest_stack import Evaluation, Figures
from paceline.training.gradients.vmap_stack import CannotStack, shape_of
from paceline.training.jobs.job import Job

# A limit for the time that code of the user's may take in the tuner's own process.

LIMIT = 120.0  # seconds, after which what makes a model or computes its first batch is taken to hang
AGAIN = 1.0  # seconds until the next attempt ends, where the first one's error was taken for something else


@contextmanager
def limited(seconds: float | None = None) -> Iterator[None]:
    """A context that is left with TimeoutError after so many seconds; in the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    most = seconds or LIMIT

    def late(*_: Any) -> None:
        raise TimeoutError(f"it was silent for {most:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, most, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


MOST = 64  # trials that are under way at once


class Stack(Protocol):
    """Several jobs of one shape, trained together."""

    agenda: Any
    updates: int

    def advance(self, updates: int) -> list[float]: ...

    def keep(self, places: Sequence[int]) -> None: ...

    def state(self, place: int) -> dict[str, Any]: ...

    def restore(self, states: Sequence[dict[str, Any]]) -> None: ...

    def module(self, place: int) -> torch.nn.Module: ...


#: Makes a stack of jobs of this shape with these data; raises CannotStack for what has no vectorised form.
MakeStack = Callable[[str, Sequence[Job], TensorSource], Stack]


@dataclass
class StackedTrial:
    """A trial in a group."""

    trial: Trial
    assignment: Assignment
    job: Job
    seconds: float = 0.0


@dataclass
class TrialGroup:
    """Members that are trained together, and how far they are."""

    stack: Stack
    members: list[StackedTrial]
    step: int
    began: float
    evaluation: Evaluation


class Stacked:
    """Runs the trials of jobs in stacks."""

    workers = 1

    def __init__(
        self,
        objective: JobObjective,
        report: Report,
        terms: Terms,
        make: MakeStack,
        apart: Callable[[], Trials],
        timeout: float | None = None,
    ) -> None:
        self.timeout = timeout
        self.objective, self.report, self.terms, self.make = objective, report, terms, make
        self.given: list[Assignment] = []
        #: What runs legs that fit in no group, once there is one; those that wait for it, and how many it has.
        self._open_apart, self._apart = apart, None  # type: Callable[[], Trials], Trials | None
        self.left: list[Assignment] = []
        self.out = 0
        self.groups: list[TrialGroup] = []
        #: How members are evaluated, by their shape.
        self.evaluations = defaultdict[str, Evaluation](Evaluation)

    def free(self) -> Sequence[int]:
        """Return a place for each leg that may join; those under way are finished first, so that groups are large."""
        return range(0 if self.groups or self.left or self.out else MOST - len(self.given))

    def start(self, assignment: Assignment, worker: int) -> None:
        self.given.append(assignment)

    def wait(self) -> Sequence[Ended]:
        ended: list[Ended] = []
        if self.given:
            ended = self._form()
        while not ended:
            ended = self._step(self.groups[0]) if self.groups else self._by_themselves()
        return ended

    def close(self) -> None:
        if self._apart is not None:
            self._apart.close()

    def _by_themselves(self) -> list[Ended]:
        """Give out legs that fit in no group, and return those that have ended."""
        if self._apart is None:
            self._apart = self._open_apart()
        for worker in self._apart.free()[: len(self.left)]:
            self._apart.start(self.left.pop(0), worker)
            self.out += 1
        ended = list(self._apart.wait())
        self.out -= len(ended)
        return ended

    # --- groups ---

    def _form(self) -> list[Ended]:
        """Sort the new legs into groups; return how those ended that cannot be in one."""
        assignments, self.given = self.given, []
        sorted_by: dict[tuple[str, int], list[tuple[StackedTrial, TensorSource]]] = {}
        ended: list[Ended] = []
        for assignment in assignments:
            trial = self._trial(assignment)
            try:
                with limited(self.timeout):
                    job = self.objective.job(trial)
                    key, source = shape_of(job)
            except CannotStack:
                self.left.append(assignment)
                continue
            except (Exception, SystemExit) as error:
                ended.append(Ended(assignment.leg.trial, None, reason=reason_of(error)))
                continue
            member = StackedTrial(trial, assignment, job)
            sorted_by.setdefault((key, assignment.leg.start), []).append((member, source))
        for (shape, start), pairs in sorted_by.items():
            self._open(shape, [member for member, _ in pairs], pairs[0][1], start)
        return ended

    def _open(self, shape: str, members: list[StackedTrial], source: TensorSource, start: int) -> None:
        """Begin a group; without a vectorised form its members run by themselves."""
        began = time.time()
        try:
            with limited(self.timeout):
                stack = self.make(shape, [member.job for member in members], source)
            states = [member.trial.load() for member in members] if start else []
            if all(states) and states:
                stack.restore(states)
            elif start:
                stack.advance(self.objective.measure.updates(stack.agenda, start))
        except (Exception, SystemExit):  # of what one of them computes: trained alone, each shows whether it is the one
            self.left += [member.assignment for member in members]
            return
        self.groups.append(TrialGroup(stack, members, start, began, self.evaluations[shape]))

    def _trial(self, assignment: Assignment) -> Trial:
        leg = assignment.leg
        report = partial(self.report, leg.trial)
        return Trial(leg.trial, assignment.configuration, leg.start, leg.stop, self.terms, report, leg.source)

    # --- training ---

    def _step(self, group: TrialGroup) -> list[Ended]:
        """Train a group by one step and return the members whose leg ended."""
        begin = time.perf_counter()
        group.step += 1
        try:
            losses = group.stack.advance(self.objective.measure.updates(group.stack.agenda, group.step))
        except (Exception, SystemExit):
            self.groups.remove(group)
            self.left += [member.assignment for member in group.members]
            return []
        ended: list[Ended] = []
        staying: list[int] = []
        figures = self._figures(group, losses)
        for place, (member, loss) in enumerate(zip(group.members, losses, strict=True)):
            end = self._after_step(group, place, member, loss, figures.get(place))
            if end is None:
                staying.append(place)
            else:
                ended.append(end)
        spent = (time.perf_counter() - begin) / len(group.members)
        for member in group.members:
            member.seconds += spent
        ended = [self._timed(each, group) for each in ended]
        if len(staying) < len(group.members):
            group.members = [group.members[place] for place in staying]
            if staying:
                group.stack.keep(staying)
            else:
                self.groups.remove(group)
        return ended

    def _figures(self, group: TrialGroup, losses: Sequence[float]) -> dict[int, Figures | Exception]:
        """Evaluate the members whose value is wanted after this step, by their places."""
        places = [place for place, m in enumerate(group.members) if self.objective.wants(group.step, m.trial.stop)]
        outcomes: dict[int, Figures | Exception] = {place: {"train_loss": losses[place]} for place in places}
        jobs = {place: group.members[place].job for place in places if math.isfinite(losses[place])}
        if self.objective.measure.metric == "train_loss" or any(job.test is None for job in jobs.values()) or not jobs:
            return outcomes
        last = max(group.members[place].trial.stop for place in jobs)
        rounds = sum(self.objective.wants(step, last) for step in range(group.step + 1, last + 1))
        modules = [group.stack.module(place) for place in jobs]
        for place, figures in zip(jobs, group.evaluation.figures([*jobs.values()], modules, rounds), strict=True):
            outcomes[place] = figures if isinstance(figures, Exception) else {**figures, "train_loss": losses[place]}
        return outcomes

    def _after_step(
        self, group: TrialGroup, place: int, member: StackedTrial, loss: float, figures: Figures | Exception | None
    ) -> Ended | None:
        """Report what was found of a member; return how its leg ended, if it did."""
        trial, last = member.trial, group.step == member.trial.stop
        try:
            if not math.isfinite(loss):
                raise TrialFailed(f"the loss is {loss} after step {group.step}")
            if isinstance(figures, Exception):
                raise figures
            if figures is not None:
                trial.report(self.objective.measure.value(figures), group.step)
            if last and not trial.stopped and self.terms.states is not None:
                trial.save(group.stack.state(place))
        except TrialFailed as error:
            return Ended(trial.number, None, reason=str(error))
        except (Exception, SystemExit) as error:
            return Ended(trial.number, None, reason=reason_of(error))
        return Ended(trial.number, trial.value, trial.stopped) if last or trial.stopped else None

    def _timed(self, ended: Ended, group: TrialGroup) -> Ended:
        member = next(m for m in group.members if m.trial.number == ended.trial)
        return Ended(
            ended.trial,
            ended.value,
            ended.stopped,
            ended.reason,
            member.seconds,
            member.trial.suggested,
            (0, group.began, time.time()),
        )
