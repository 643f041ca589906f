"""A published study's small CNN on MNIST, measured again: what it reports of an epoch, and ours."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

import paceline.kernels.machine as machine
from paceline.kernels.compiled import Compiled
from paceline.kernels.fused import Fused
from paceline.kernels.ir import Contract, Repeat, Statement, Transpose
from paceline.kernels.losses import loss_kind
from paceline.kernels.measure.networks import SGD, Network
from paceline.kernels.memory import Target, used_by
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan, flops
from paceline.kernels.printers.cpp import text
from paceline.kernels.printers.study import published
from paceline.kernels.processors import Cpu, Form, Processor, Runner
from paceline.kernels.weights import OneModel

PUBLISHED = {
    "sequential": 102.3,
    "OpenMP, 2 threads": 102.3 / 2.7,
    "MPI, 2 ranks": 102.3 / 1.5,
    "MPI, 4 ranks": 102.3,
    "CUDA, T4": 3.0,
}  # seconds of an epoch; OpenMP on 8 threads crashed


def study_target(real: str, batch_size: int) -> Target:
    """One sample at a time, every layer on its own."""
    return replace(machine.target(real), scalar=True, apart=True)


def study_network(network: Network, keeps: str, threads: int) -> Fused:
    """The network as published: a layer after the other, batch 1."""

    def source(plan: Plan, rule: Rule) -> str:
        return text(plan, rule, published(plan, keeps, threads))

    return study_on(Cpu(1, Form(study_target, source)), network)


def study_on(processor: Processor, network: Network) -> Fused:
    """The network as the study trained it, on a processor that has its form of the text."""
    weights = OneModel(network.make().to(processor.where), SGD)
    return Fused(weights, loss_kind(nn.CrossEntropyLoss()), 1, Runner(processor))


def epoch_seconds(
    fused: Fused, network: Network, seconds: float, agreed: Callable[[float], float] = lambda seconds: seconds
) -> float:
    """Seconds of a whole epoch, from the best of three shorter ones that take about the time given.

    Ranks that train together have to agree on what a clock said: `agreed` makes one rank's time that of all.
    """
    x, y = (numbers.to(fused.processor.where) for numbers in network.data(min(network.samples, 10_000)))
    chance = torch.Generator().manual_seed(0)

    def train(count: int) -> float:
        fused.train_epoch(x, y, torch.randint(len(x), (count,), generator=chance))
        assert fused.timed is not None
        return agreed(fused.timed[1])

    unit = max(network.batch, 64)
    count = unit
    while (elapsed := train(count)) < seconds / 3 and count < network.samples:
        target = int(count * min(10.0, 1.2 * seconds / 3 / max(elapsed, 1e-6))) // unit * unit
        count = min(max(count + unit, target), network.samples)
    return min(train(count) for _ in range(3)) / count * network.samples


@dataclass(frozen=True)
class StepTime:
    """One step measured alone, its data in the cache."""

    layer: str
    way: str
    what: str
    flops: int  # of one sample
    bytes: int  # of one sample
    seconds: float  # of one sample


def step_times(fused: Fused, network: Network, seconds: float) -> list[StepTime]:
    """Every step of a compiled network, measured alone."""
    x, _ = network.data(64)
    compiled = fused.compiled(x)
    times = []
    for number, step in enumerate(compiled.plan.steps()):
        what = type(step.statement).__name__
        if what == "Loss":
            continue
        once = _step_seconds(compiled, fused, network, number, seconds) / compiled.plan.target.lanes
        work = flops(step.statement) if isinstance(step.statement, Contract | Repeat) else 0
        way = "backward" if "_backward_" in step.name else "forward"
        layer = step.statement.layer
        times.append(StepTime(layer, way, what.lower(), work, _bytes(compiled.plan, step.statement), once))
    return times


def _bytes(plan: Plan, statement: Statement | Transpose) -> int:
    """Bytes of all buffers that a statement touches; what a group's samples share counts by its share."""
    lanes = plan.target.lanes
    places = [plan.places[name] for name in used_by([statement])]
    return sum(place.size * (lanes if place.element == "V" else 1) * 4 // lanes for place in places)


def _step_seconds(compiled: Compiled, fused: Fused, network: Network, number: int, seconds: float) -> float:
    """Seconds of one call of a step, for a whole group of samples."""
    function = compiled.program.functions.paceline_step
    x, y = network.data(64)
    call, alive = fused.call_for(compiled, x, y)
    times = 20

    def run(count: int) -> float:
        begin = time.perf_counter()
        function(ctypes.byref(call), ctypes.c_int64(number), ctypes.c_int64(count))
        return time.perf_counter() - begin

    run(2)
    while run(times) < seconds / 4:
        times *= 2
    empty = min(run(0) for _ in range(3))
    best = min(run(times) for _ in range(3)) - empty
    del alive
    return max(best, 1e-12) / times
