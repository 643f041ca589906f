"""compute="auto": generated code where the network has it and a measurement on the job's own batch says that it pays.

an update of the first batch by PyTorch, timed     the whole training takes a few seconds ──▶ PyTorch
    │ longer than code takes to be made
layers, loss, optimizer and data have kernels?     no ──▶ PyTorch, and why
    │ yes
the same update by generated code, timed           slower, or hardly faster ──▶ PyTorch
    │ faster
generated code
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import re
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from paceline import user_cache
from paceline.core.agenda import Agenda
from paceline.core.rules.plain import Plain
from paceline.data.order import Order
from paceline.data.source import Reader, Source
from paceline.errors import JobError, JobWarning
from paceline.gradients.fused_replica import FusedGradients, check_fusible
from paceline.gradients.learner import Learner
from paceline.gradients.replica import AUTOGRAD, CPU, GradientMethod, Replica
from paceline.jobs.job import Job
from paceline.kernels.build import ABI, abilities, folder
from paceline.kernels.comparison import WrongCode

PAYS = 1.1  # times as fast as PyTorch, from which on generated code is chosen: both are timed only briefly
WORTH = 5.0  # seconds that a training has to take by PyTorch: compiling takes from one to more than ten
SECONDS = 0.02  # of each timing, of which the best of ROUNDS counts
ROUNDS = 3
#: Settings of a job that do not change how long an update takes.
UNTIMED = (
    "model", "data", "test", "metrics", "evaluate", "evaluate_every", "seed", "epochs", "name", "origin", "shuffle",
    "compute", "device", "num_workers", "on_nan",
)  # fmt: skip
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Choice(NamedTuple):
    """How a job's gradients are computed, and why."""

    compute: str
    why: str

    def __str__(self) -> str:
        return f"compute=auto took {self.compute}: {self.why}"


class Timings(NamedTuple):
    """What was measured of a job on this machine: the same job computes in the same way from then on."""

    #: Seconds of an update by PyTorch.
    autograd: float
    #: Seconds of an update by generated code; None while it was not worth a measurement.
    fused: float | None = None


def choose(job: Job, module: nn.Module, source: Source, refused: str = "") -> Choice:
    """Choose how to compute the gradients of a job on the CPU; `refused` is why it cannot be by generated code."""
    if refused:
        return Choice("autograd", refused)
    timings = Remembered(job, module)
    updates = -(-len(source) // job.batch_size) * job.epochs
    fused = job.with_(compute="fused", device="cpu", on_nan="ignore")
    if timings.newest is None:
        timings.remember(Timings(_seconds(fused.with_(compute="autograd"), module, source, lambda _: AUTOGRAD)))
    assert timings.newest is not None
    by_pytorch, by_kernels = timings.newest
    if by_pytorch * updates < WORTH:
        whole = f"PyTorch makes all {updates:,} updates in about {by_pytorch * updates:.1f} s"
        return Choice("autograd", f"{whole}, and making code for this network takes as long")
    try:
        check_fusible(fused, module, source)  # always: a compiler may have come or gone
        if by_kernels is None:
            by_kernels = _seconds(fused, module, source, lambda copied: FusedGradients(fused, copied))
            timings.remember(Timings(by_pytorch, by_kernels))
    except WrongCode as error:
        warnings.warn(f"{error}, as this run does", JobWarning, stacklevel=2)
        return Choice("autograd", str(error))
    except JobError as error:
        return Choice("autograd", str(error))
    figures = f"an update takes {by_kernels * 1e6:,.0f} µs in generated code and {by_pytorch * 1e6:,.0f} µs in PyTorch"
    return Choice("fused" if by_pytorch > PAYS * by_kernels else "autograd", figures)


class Remembered:
    """The timings of one kind of job, which outlive the process: two runs of one job have to have the same bits."""

    #: Those of this process, where they cannot be written.
    _here: ClassVar[dict[str, Timings]] = {}

    def __init__(self, job: Job, module: nn.Module) -> None:
        self._key = _key(job, module)
        self._file = folder().parent / "choices" / f"{self._key}.json"
        self.newest = self._here.get(self._key)
        if self.newest is None:
            with suppress(OSError, ValueError, TypeError):
                self.newest = Timings(**json.loads(user_cache.read(self._file)))

    def remember(self, timings: Timings) -> None:
        self.newest = self._here[self._key] = timings
        with suppress(OSError):
            user_cache.write(self._file, json.dumps(timings._asdict()).encode())


def _key(job: Job, module: nn.Module) -> str:
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


def _seconds(job: Job, module: nn.Module, source: Source, method: Callable[[nn.Module], GradientMethod]) -> float:
    """Seconds of an update of the first batch, on a copy of the module; a schedule may not have as many updates."""
    job = job.with_(lr_scheduler=None)
    copied = copy.deepcopy(module).train()
    agenda = Agenda(len(source), min(job.batch_size, len(source)), 1)
    replica = Replica(job, copied, (), CPU, method(copied))
    learner = Learner(replica, Reader(source, Order(len(source), job.seed, job.shuffle), 0, lambda _: None))
    store = replica.local_store(job.make_optimizer(copied, replica.parameters), Plain())

    def update() -> None:
        store.step(learner.settle(learner.compute(agenda.chunks(0))))

    update()
    rounds = []
    for _ in range(ROUNDS):
        begin, updates = time.perf_counter(), 0
        while not updates or time.perf_counter() - begin < SECONDS:
            update()
            updates += 1
        rounds.append((time.perf_counter() - begin) / updates)
    return min(rounds)
