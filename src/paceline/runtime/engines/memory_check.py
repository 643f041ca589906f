"""The memory that workers with a part of the model will take, estimated before one is started."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.schedules import Table
from paceline.errors import PlanError
from paceline.plans.plan import Plan
from paceline.training.data.order import Order
from paceline.training.data.source import Reader, Source
from paceline.training.jobs.job import Job
from paceline.training.stages.blueprint import Blueprint
from paceline.training.stages.memory_estimate import needed, weigh_all

MIB = 1 << 20
STAGES = "more workers or smaller micro-batches, recompute=all, or balance=memory"
PARTS = "more workers, a smaller batch_size, or another split"


def peaks_of(
    job: Job, module: nn.Module, source: Source, blueprint: Blueprint, chunk: Chunk, table: Table
) -> list[int]:
    """Estimate the peak of each worker's own memory in bytes, if all micro-batches are like this one."""
    reader = Reader(source, Order(len(source), job.seed, job.shuffle), 0, lambda _: None)
    return needed(table, weigh_all(job, module, blueprint, reader, chunk))


def chunks_each(plan: Plan, agenda: Agenda) -> int:
    """Return how many chunks of an update a worker of split layers takes part in, at most."""
    return -(-len(agenda.filled(0)) // plan.parts)


def check_fit(bound: int, peaks: Sequence[int], remedy: str) -> None:
    """Raise `PlanError` where a worker would take more memory than the plan's bound in MiB."""
    worst = max(range(len(peaks)), key=peaks.__getitem__)
    if peaks[worst] > bound * MIB:
        raise PlanError(
            f"worker {worst} would take {math.ceil(peaks[worst] / MIB)} MiB for its tensors, and "
            f"memory={bound}; all workers: {in_mib(peaks)}. Take {remedy}"
        )


def in_mib(peaks: Sequence[int]) -> str:
    """List bytes as MiB, rounded up."""
    return ", ".join(str(math.ceil(each / MIB)) for each in peaks)
