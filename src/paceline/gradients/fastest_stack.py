"""Which form trains a group of jobs fastest: a lane for each, or a core for each. A few updates tell."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn

from paceline.core.agenda import Agenda
from paceline.data.source import TensorSource
from paceline.gradients.core_stack import CoreStack
from paceline.gradients.lane_stack import LaneStack
from paceline.gradients.stacking import CannotStack
from paceline.jobs.job import Job
from paceline.kernels import CannotFuse, NoCompiler, machine

LOOK = 60  # updates that are timed
COMPILE = 2.0  # seconds to compile a text, about
GeneratedStack = CoreStack | LaneStack
KINDS: tuple[type[GeneratedStack], ...] = (CoreStack, LaneStack)


def fastest_stack(jobs: Sequence[Job], source: TensorSource) -> GeneratedStack:
    """Return the stack of these jobs that is expected to be done first. Raise CannotStack where kernels are missing."""
    agenda = Agenda(len(source), jobs[0].batch_size, max(job.epochs for job in jobs))
    try:
        if len(jobs) == 1:
            return CoreStack(jobs, source, agenda)
        kind = min(KINDS, key=lambda kind: _seconds(kind, jobs, source, agenda))
        return kind(jobs, source, agenda)
    except (CannotFuse, NoCompiler) as error:
        raise CannotStack(str(error)) from error


def seconds_per_update(jobs: Sequence[Job], source: TensorSource) -> float:
    """Return how long the faster form takes for an update of all these jobs."""
    agenda = Agenda(len(source), jobs[0].batch_size, max(job.epochs for job in jobs))
    try:
        return min(_seconds(kind, jobs, source, agenda) for kind in KINDS) / agenda.updates
    except (CannotFuse, NoCompiler) as error:
        raise CannotStack(str(error)) from error


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
    few = min(LOOK, agenda.updates)
    stack.advance(1 if few > 1 else 0)
    begin = time.perf_counter()
    stack.advance(few)
    each = (time.perf_counter() - begin) / max(1, few - 1)
    compiling = COMPILE * (len({_rates(job) for job in jobs}) - 1) if kind is CoreStack else 0.0
    return compiling + each * agenda.updates * -(-len(jobs) // len(some))


def _rates(job: Job) -> tuple[float, ...]:
    """Return the rates of dropout, which are part of a text where samples are in the lanes."""
    with torch.random.fork_rng(devices=[]):
        module = job.make_model()
    return tuple(float(part.p) for part in module.modules() if isinstance(part, nn.Dropout))
