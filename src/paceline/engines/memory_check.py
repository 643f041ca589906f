"""How much memory the workers of a pipeline take, told before one is started."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from paceline.core.agenda import Chunk
from paceline.core.schedules import Table
from paceline.data.order import Order
from paceline.data.source import Reader, Source
from paceline.errors import PlanError
from paceline.jobs.job import Job
from paceline.stages.memory_estimate import needed, weigh_all
from paceline.stages.segment import Blueprint

if TYPE_CHECKING:
    from paceline.engines.setup import Setup

MIB = 1 << 20


def peaks_of(job: Job, module: nn.Module, source: Source, made: Blueprint, chunk: Chunk, table: Table) -> list[int]:
    """The most bytes of its own that each worker will take, when micro-batches are like this one."""
    reader = Reader(source, Order(len(source), job.seed, job.shuffle), 0, lambda _: None)
    return needed(table, weigh_all(job, module, made, reader, chunk))


def check_fit(bound: int, workers: int, peaks: Sequence[int]) -> None:
    """Raise `PlanError` where a worker would take more memory than the plan's bound in MiB."""
    worst = max(range(workers), key=peaks.__getitem__)
    if peaks[worst] > bound * MIB:
        raise PlanError(
            f"worker {worst} would take {math.ceil(peaks[worst] / MIB)} MiB for its tensors, and "
            f"memory={bound}; all workers: {told(peaks)}. Take more workers or smaller micro-batches, "
            "recompute=all, or balance=memory"
        )


def told(peaks: Sequence[int]) -> str:
    return ", ".join(str(math.ceil(each / MIB)) for each in peaks)


def memory_line(setup: Setup) -> str:
    """What is said of a pipeline's memory for a job."""
    assert setup.blueprint is not None
    chunks = setup.agenda.filled(0)
    chunk = max(chunks, key=lambda chunk: chunk.samples)
    assert setup.pipeline is not None
    table = setup.table((len(chunks),) * (setup.pipeline.schedule.span or setup.plan.workers))
    peaks = peaks_of(setup.job, setup.module, setup.source, setup.blueprint, chunk, table)
    return f"For {setup.job.name}, workers take at most {told(peaks)} MiB for their tensors."
