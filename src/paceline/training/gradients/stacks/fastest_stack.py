"""Which form trains jobs of one shape fastest. A few updates tell, once for each shape.

Of generated code: a core for each, or a lane for each. Networks without kernels are vectorised by torch.func.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import torch

from paceline.algorithms.agenda import Agenda
from paceline.errors import JobWarning
from paceline.kernels import CannotFuse, NoCompiler, machine
from paceline.kernels.alike import rates_of
from paceline.kernels.build import COMPILING
from paceline.kernels.comparison import WrongCode
from paceline.training.data.source import TensorSource
from paceline.training.gradients.stacks.core_stack import CoreStack
from paceline.training.gradients.stacks.lane_stack import LaneStack
from paceline.training.gradients.stacks.stacking import CannotStack
from paceline.training.gradients.stacks.vmap_stack import VmapStack
from paceline.training.jobs.job import Job

LOOK = 0.05  # seconds for which a form is timed, at least one update
SIDE_BY_SIDE = 16  # members by torch.func that are timed
WORTH = 2.0  # times the seconds of a look, which a form has to be able to save for it to be looked at
GeneratedStack = CoreStack | LaneStack


@dataclass(frozen=True)
class Pace:
    """How fast a form is: seconds of an update of so many members at once."""

    seconds: float
    members: int

    def of(self, jobs: int, updates: int) -> float:
        """Return the seconds of all updates of so many jobs."""
        return -(-jobs // self.members) * self.seconds * updates


@dataclass
class Forms:
    """The forms that were timed, by the shape of the jobs."""

    known: dict[str, dict[type[GeneratedStack], Pace]] = field(default_factory=dict)

    def stack(self, shape: str, jobs: Sequence[Job], source: TensorSource) -> GeneratedStack | VmapStack:
        """Return the stack of these jobs that is expected to be done first. Raise CannotStack where there is none."""
        agenda = _agenda(jobs, source)
        try:
            if len(jobs) == 1:
                return CoreStack(jobs, source, agenda)
            kind, _ = self._fastest(shape, jobs, source, len(jobs))
            return kind(jobs, source, agenda)
        except (CannotFuse, NoCompiler) as error:
            return _vmapped(jobs, source, agenda, error)

    def seconds(self, shape: str, jobs: Sequence[Job], source: TensorSource, members: int) -> float:
        """Return how long the fastest form takes for all updates of one job, where it trains so many of this shape."""
        try:
            return self._fastest(shape, jobs, source, members)[1] / members
        except (CannotFuse, NoCompiler) as error:
            agenda = _agenda(jobs, source)
            stack = _vmapped(list(islice(cycle(jobs), min(members, SIDE_BY_SIDE))), source, agenda, error)
            return _timed(stack) * agenda.updates / len(stack.jobs)

    def _fastest(
        self, shape: str, jobs: Sequence[Job], source: TensorSource, members: int
    ) -> tuple[type[GeneratedStack], float]:
        """Return the form of generated code that trains so many members first, and its seconds."""
        updates = _agenda(jobs, source).updates
        paces = self.known.setdefault(shape, {})
        if CoreStack not in paces:
            cores = [jobs[0]] * machine.cores()  # one text, since each would have to be compiled
            paces[CoreStack] = _pace(lambda: CoreStack(cores, source, _agenda(jobs, source), jobs), len(cores))
        on_cores = paces[CoreStack].of(members, updates) + COMPILING * (len({_rates(job) for job in jobs}) - 1)
        if LaneStack not in paces and on_cores > WORTH * COMPILING:
            some = jobs[: machine.target("float").lanes]
            try:
                paces[LaneStack] = _pace(lambda: LaneStack(some, source, _agenda(jobs, source)), len(some))
            except WrongCode:
                raise
            except CannotFuse:  # they differ in what lanes have in common
                paces[LaneStack] = Pace(float("inf"), 1)
        if LaneStack in paces and (in_lanes := paces[LaneStack].of(members, updates)) < on_cores:
            return LaneStack, in_lanes
        return CoreStack, on_cores


def _agenda(jobs: Sequence[Job], source: TensorSource) -> Agenda:
    return Agenda(len(source), jobs[0].batch_size, max(job.epochs for job in jobs))


def _vmapped(jobs: Sequence[Job], source: TensorSource, agenda: Agenda, error: Exception) -> VmapStack:
    """Return a stack by torch.func, since there are no kernels; if it cannot be, say both reasons."""
    if isinstance(error, WrongCode):
        warnings.warn(f"{error}, as these trials do", JobWarning, stacklevel=2)
    try:
        return VmapStack(jobs, source, agenda)
    except CannotStack as refused:
        raise CannotStack(f"there are no kernels ({error}), and {refused}") from error


def _pace(make: Callable[[], GeneratedStack], members: int) -> Pace:
    return Pace(_timed(make()), members)


def _timed(stack: GeneratedStack | VmapStack) -> float:
    """Return the seconds of an update of all members, from a few of them."""
    if stack.agenda.updates > 1:
        stack.advance(1)
    first, stride, begin = stack.updates, 1, time.perf_counter()
    while stack.updates < stack.agenda.updates:
        stack.advance(min(stack.agenda.updates, stack.updates + stride))
        stride *= 2
        if time.perf_counter() - begin > LOOK:
            break
    return (time.perf_counter() - begin) / (stack.updates - first)


def _rates(job: Job) -> tuple[float, ...]:
    with torch.random.fork_rng(devices=[]):
        return rates_of(job.make_model())
