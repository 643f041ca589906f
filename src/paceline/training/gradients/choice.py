"""compute="auto": generated code where the network has it and where making it is won back within the training.

a few batches                                              ──▶ PyTorch, without a measurement
    │ more
an update by PyTorch, timed: all take about a second       ──▶ PyTorch
    │ longer
layers, loss, optimizer and data have kernels?     no      ──▶ PyTorch, and why
    │ yes: their text says how long a compiler takes, and about how long an update does
PyTorch has trained it twice before code has       yes     ──▶ PyTorch
    │ no, or the text was compiled before
the same update by generated code, timed: hardly faster    ──▶ PyTorch
    │ faster
generated code

Whatever was measured or decided is remembered, so the same job computes in the same way from then on, however busy the
machine, and whatever is compiled later.
"""

from __future__ import annotations

import copy
import fcntl
import functools
import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from paceline import user_cache
from paceline.algorithms.agenda import Agenda
from paceline.algorithms.rules.gradients import Plain
from paceline.errors import JobError, JobWarning
from paceline.kernels.build import ABI, abilities, compiling_seconds, folder, is_compiled
from paceline.kernels.comparison import WrongCode
from paceline.training.data.source import Order, Reader, Source
from paceline.training.gradients.fused_replica import (
    FusedGradients,
    check_described,
    check_settings,
    first_batch,
    network,
)
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.replica import AUTOGRAD, CPU, GradientMethod, Replica
from paceline.training.jobs.job import Job, threads
from paceline.training.parameters.optimizers import has_hooks

PAYS = 1.1  # times as fast as PyTorch, from which on generated code is chosen: both are timed only briefly
FEW = 50  # batches with fewer of which nothing is measured
TRAININGS = 2  # of one job, by whose end its code has to be won back: few jobs are trained only once
SOON = 0.6  # seconds of a training that is over before code for it could be won back
SLOWER = 1.3  # times as long as the fastest update takes one of a training, by either way
LITTLE = 0.15  # of the seconds of these trainings: so much may be lost on code that turns out to be slow
SECONDS = 0.02  # of each timing, of which the best of ROUNDS counts
ROUNDS = 3
#: Settings of a job that do not change how long an update takes.
UNTIMED = (
    "model",
    "data",
    "test",
    "metrics",
    "evaluate",
    "evaluate_every",
    "seed",
    "epochs",
    "name",
    "origin",
    "shuffle",
    "compute",
    "device",
    "num_workers",
    "on_nan",
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Choice(NamedTuple):
    """How a job's gradients are computed, and why."""

    compute: str
    why: str
    #: Seconds that all batches are expected to take; None where nothing was measured.
    seconds: float | None = None

    def __str__(self) -> str:
        return f"compute=auto took {self.compute}: {self.why}"


def choose(job: Job, module: nn.Module, source: Source, batches: int, refused: str = "") -> Choice:
    """Choose how to compute the gradients of so many batches on the CPU; `refused` is why it cannot be by code."""
    if refused:
        return Choice("autograd", refused)
    if batches < FEW:
        return Choice("autograd", f"a training of {batches} batches ends before code is made for it")
    try:
        check_settings(job)
        measured = Measured(job, module)
        with measured.alone():
            return _choose(job.with_(device="cpu", on_nan="ignore"), module, source, batches, measured.figure)
    except WrongCode as error:
        warnings.warn(f"{error}, as this run does", JobWarning, stacklevel=2)
        return Choice("autograd", str(error))
    except JobError as error:
        return Choice("autograd", str(error).partition("\n")[0])  # a compiler says much


def _choose(
    job: Job,
    module: nn.Module,
    source: Source,
    batches: int,
    figure: Callable[[str, Callable[[], float]], float],
) -> Choice:
    plain, fused = job.with_(compute="autograd"), job.with_(compute="fused")
    autograd = functools.partial(_seconds, plain, module, source, lambda _: AUTOGRAD)

    def first() -> float:
        check_described(job, module, first_batch(job, source)[0])
        return autograd(0)

    duration = SLOWER * batches * figure("first", first)
    if duration >= SOON:
        duration = SLOWER * batches * figure("autograd", autograd)
    if duration < SOON:
        return Choice("autograd", f"a training of about {duration:.1f} s ends before code is made for it", duration)
    x, y = first_batch(fused, source)
    generated = network(fused, module)

    def pays() -> float:
        """1 where code is worth a try, 0 elsewhere."""
        by_code = compiling + TRAININGS * SLOWER * batches * figure("expected", lambda: draft().seconds(job.batch_size))
        worth = TRAININGS * duration >= PAYS * by_code or compiling <= LITTLE * TRAININGS * duration
        return float(worth or is_compiled(draft().source))

    draft = functools.partial(generated.draft, x)  # which takes a while, and is remembered by the network
    compiling = figure("compiling", lambda: compiling_seconds(draft().source))
    if not figure(f"code for {batches} batches", pays):
        why = f"all takes about {duration:.1f} s, and code for it about {compiling:.0f} s to make"
        return Choice("autograd", why, duration)
    generated.prepare(x, y)  # always: a compiler may have come or gone
    by_code = functools.partial(_seconds, fused, module, source, functools.partial(FusedGradients, fused))
    by_kernels = figure(f"fused {draft().digest}", by_code)
    by_pytorch = figure("autograd", autograd)
    figures = f"an update takes {by_kernels * 1e6:,.0f} µs in generated code and {by_pytorch * 1e6:,.0f} µs in PyTorch"
    compute = "fused" if by_pytorch > PAYS * by_kernels else "autograd"
    return Choice(compute, figures, SLOWER * batches * (by_kernels if compute == "fused" else by_pytorch))


def choices() -> Path:
    """The folder of what was chosen on this machine."""
    return folder().parent / "choices"


class Measured:
    """What was measured of one kind of job on this machine, by name, in seconds; it outlives the process."""

    #: What this process has measured, where it cannot be written.
    _here: ClassVar[dict[str, dict[str, float]]] = {}

    def __init__(self, job: Job, module: nn.Module) -> None:
        key = kind_of(job, module)
        self._file, self._figures = choices() / f"{key}.json", self._here.setdefault(key, {})

    def figure(self, name: str, measure: Callable[[], float]) -> float:
        """Return what is remembered by this name, or measure it and remember it."""
        if name not in self._figures:
            self._figures[name] = measure()
            with suppress(OSError):
                user_cache.write(self._file, json.dumps(self._figures).encode())
        return self._figures[name]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Measure alone: no other process measures this job in the block, and earlier measurements are known."""
        with ExitStack() as stack:
            with suppress(OSError):
                lock = self._file.with_suffix(".lock")
                user_cache.append(lock, b"")
                descriptor = stack.enter_context(user_cache.opened(lock, os.O_RDWR))
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # a process that was forked has it open, too
            with suppress(OSError, ValueError, AttributeError):
                entries = json.loads(user_cache.read(self._file)).items()
                self._figures |= {name: each for name, each in entries if isinstance(each, float)}
            yield


def kind_of(job: Job, module: nn.Module) -> str:
    """Return a digest of what decides how long an update takes: network, settings and machine, not values."""
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in module.named_parameters()]
    settings = [(each.name, _stable(getattr(job, each.name))) for each in fields(job) if each.name not in UNTIMED]
    machine = (abilities(), torch.get_num_threads(), torch.__version__, ABI)
    return hashlib.sha256(repr((str(module), shapes, settings, machine)).encode()).hexdigest()[:32]


def _stable(value: Any) -> str:
    """Name a setting alike in every process: functions by their code, and nothing by its address."""
    if isinstance(value, functools.partial):
        return f"partial({_stable(value.func)}, {_stable(value.args)}, {_stable(value.keywords)})"
    if code := getattr(value, "__code__", None):
        return f"{value.__module__}.{value.__qualname__} {code.co_code.hex()} {_ADDRESS.sub('', repr(code.co_consts))}"
    return _ADDRESS.sub("", repr(value))


def update_seconds(job: Job, module: nn.Module, source: Source) -> float:
    """Seconds of an update by one thread of the CPU, as a training has it in the way that the job names."""
    with threads(1), torch.random.fork_rng(devices=[]):
        method = functools.partial(FusedGradients, job) if job.compute == "fused" else lambda _: AUTOGRAD
        return SLOWER * _seconds(job.with_(device="cpu", on_nan="ignore"), module, source, method)


def _seconds(
    job: Job, module: nn.Module, source: Source, method: Callable[[nn.Module], GradientMethod], rounds: int = ROUNDS
) -> float:
    """Seconds of an update of the first batch, the fastest of some rounds; without any, those of the first update.

    On one thread, time in which another process had the core does not count. It is made on a copy of the module,
    without a schedule, which may not have as many updates, and without the step of an optimizer that is not PyTorch's,
    which may change more than parameters.
    """
    job = job.with_(lr_scheduler=None)
    copied = copy.deepcopy(module).train()
    agenda = Agenda(len(source), min(job.batch_size, len(source)), 1)
    replica = Replica(job, copied, (), CPU, method(copied))
    learner = Learner(replica, Reader(source, Order(len(source), job.seed, job.shuffle), 0, lambda _: None))
    optimizer = job.make_optimizer(copied, replica.parameters)
    store = replica.local_store(optimizer, Plain())
    steps = type(optimizer).__module__.startswith("torch.") and not has_hooks(optimizer)

    def update_for(seconds: float) -> float:
        begin, cpu_begin, updates = time.perf_counter(), time.process_time(), 0
        while not updates or time.perf_counter() - begin < seconds:
            gradient = learner.finalize(learner.compute(agenda.chunks(0)))
            if steps:
                store.step(gradient)
            updates += 1
        return min(time.perf_counter() - begin, time.process_time() - cpu_begin) / updates

    first = update_for(0.0)
    return min((update_for(SECONDS) for _ in range(rounds)), default=first)
