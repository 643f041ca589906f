"""Which form trains a group of jobs fastest. A few updates tell.

Of generated code: a lane for each, or a core for each. Networks without kernels are vectorised by torch.func.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle, islice

import torch
from torch import nn

from paceline.core.agenda import Agenda
from paceline.data.source import TensorSource
from paceline.gradients.core_stack import CoreStack
from paceline.gradients.lane_stack import LaneStack
from paceline.gradients.stacking import CannotStack
from paceline.gradients.vmap_stack import VmapStack
from paceline.jobs.job import Job
from paceline.kernels import CannotFuse, NoCompiler, machine

LOOK, STRIDE = 60, 10  # updates that are timed, and those after which the time is looked at
PATIENCE = 3.0  # seconds for which they are timed
SIDE_BY_SIDE = 16  # members by torch.func that are timed
COMPILE = 2.0  # seconds to compile a text, about
GeneratedStack = CoreStack | LaneStack
KINDS: tuple[type[GeneratedStack], ...] = (CoreStack, LaneStack)


def fastest_stack(jobs: Sequence[Job], source: TensorSource) -> GeneratedStack | VmapStack:
    """Return the stack of these jobs that is expected to be done first. Raise CannotStack where there is none."""
    agenda = Agenda(len(source), jobs[0].batch_size, max(job.epochs for job in jobs))
    try:
        if len(jobs) == 1:
            return CoreStack(jobs, source, agenda)
        kind = min(KINDS, key=lambda kind: _seconds(kind, jobs, source, agenda))
        return kind(jobs, source, agenda)
    except (CannotFuse, NoCompiler) as error:
        return _vmapped(jobs, source, agenda, error)


def seconds_stacked(jobs: Sequence[Job], source: TensorSource, members: int) -> float:
    """Return how long the fastest form takes for all updates of one job, where it trains so many of this shape."""
    agenda = Agenda(len(source), jobs[0].batch_size, max(job.epochs for job in jobs))
    try:
        return min(_seconds(kind, jobs, source, agenda) for kind in KINDS) / len(jobs)
    except (CannotFuse, NoCompiler) as error:
        stack = _vmapped(list(islice(cycle(jobs), min(members, SIDE_BY_SIDE))), source, agenda, error)
        return _timed(stack) / len(stack.jobs)


def _vmapped(jobs: Sequence[Job], source: TensorSource, agenda: Agenda, error: Exception) -> VmapStack:
    """Return a stack by torch.func, since there are no kernels; if it cannot be, say both reasons."""
    try:
        return VmapStack(jobs, source, agenda)
    except CannotStack as refused:
        raise CannotStack(f"there are no kernels ({error}), and {refused}") from error


def _seconds(kind: type[GeneratedStack], jobs: Sequence[Job], source: TensorSource, agenda: Agenda) -> float:
    """Return the time that all updates of all jobs take in this form, from a few updates of some of them."""
    some = list(jobs[: machine.cores() if kind is CoreStack else machine.target("float").lanes])
    if kind is CoreStack:  # one text, since each would have to be compiled
        some = [some[0]] * len(some)
    try:
        stack = kind(some, source, agenda)
    except CannotFuse:
        if kind is CoreStack:
            raise
        return float("inf")  # some differ in what lanes have in common
    compiling = COMPILE * (len({_rates(job) for job in jobs}) - 1) if kind is CoreStack else 0.0
    return compiling + _timed(stack) * -(-len(jobs) // len(some))


def _timed(stack: GeneratedStack | VmapStack) -> float:
    """Return the seconds that all updates of a stack will take, from a few of them."""
    few = min(LOOK, stack.agenda.updates)
    stack.advance(1 if few > 1 else 0)
    begin = time.perf_counter()
    while stack.updates < few and time.perf_counter() - begin < PATIENCE:
        stack.advance(min(few, stack.updates + STRIDE))
    each = (time.perf_counter() - begin) / max(1, stack.updates - (few > 1))
    return each * stack.agenda.updates


def _rates(job: Job) -> tuple[float, ...]:
    """Return the rates of dropout, which are part of a text where samples are in the lanes."""
    with torch.random.fork_rng(devices=[]):
        module = job.make_model()
    return tuple(float(part.p) for part in module.modules() if isinstance(part, nn.Dropout))
