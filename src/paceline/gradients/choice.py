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
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import nn

from paceline.core.agenda import Agenda
from paceline.core.rules.plain import Plain
from paceline.data.order import Order
from paceline.data.source import Reader, Source
from paceline.errors import JobError
from paceline.gradients.fused_replica import FusedGradients, check_fusible
from paceline.gradients.learner import Learner
from paceline.gradients.replica import AUTOGRAD, CPU, GradientMethod, Replica
from paceline.jobs.job import Job
from paceline.parameters.layout import sha256

PAYS = 1.1  # times as fast as PyTorch, from which on generated code is chosen: both are timed only briefly
WORTH = 5.0  # seconds that a training has to take by PyTorch: compiling takes from one to more than ten
SECONDS = 0.02  # of each timing, of which the best of ROUNDS counts
ROUNDS = 3


class Choice(NamedTuple):
    """How a job's gradients are computed, and why."""

    compute: str
    why: str

    def __str__(self) -> str:
        return f"compute=auto took {self.compute}: {self.why}"


#: What was measured in this process: a job that is trained again, as in the rounds of a comparison, computes as before.
_known: dict[tuple[object, ...], Choice] = {}


def choose(job: Job, module: nn.Module, source: Source, refused: str = "") -> Choice:
    """Choose how to compute the gradients of a job on the CPU; `refused` is why it cannot be by generated code."""
    if refused:
        return Choice("autograd", refused)
    settings = replace(job, data=None, test=None, metrics={}, evaluate=None, evaluate_every=None, seed=0)
    given = tuple(repr(getattr(settings, each.name)) for each in fields(settings))
    key = (sha256(module), str(module), given, len(source), torch.get_num_threads())
    if key not in _known:
        _known[key] = _measured(job, module, source)
    return _known[key]


def _measured(job: Job, module: nn.Module, source: Source) -> Choice:
    """Time an update by generated code and by PyTorch."""
    fused = job.with_(compute="fused", device="cpu", on_nan="ignore")
    by_pytorch = _seconds(fused.with_(compute="autograd"), module, source, lambda _: AUTOGRAD)
    updates = -(-len(source) // job.batch_size) * job.epochs
    if by_pytorch * updates < WORTH:
        whole = f"PyTorch makes all {updates:,} updates in about {by_pytorch * updates:.1f} s"
        return Choice("autograd", f"{whole}, and making code for this network takes as long")
    try:
        check_fusible(fused, module, source)
        by_kernels = _seconds(fused, module, source, lambda copied: FusedGradients(fused, copied))
    except JobError as error:
        return Choice("autograd", str(error))
    said = f"an update takes {by_kernels * 1e6:,.0f} µs in generated code and {by_pytorch * 1e6:,.0f} µs in PyTorch"
    return Choice("fused" if by_pytorch > PAYS * by_kernels else "autograd", said)


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
    found = []
    for _ in range(ROUNDS):
        begin, updates = time.perf_counter(), 0
        while not updates or time.perf_counter() - begin < SECONDS:
            update()
            updates += 1
        found.append((time.perf_counter() - begin) / updates)
    return min(found)
