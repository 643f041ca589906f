"""A process group of PyTorch's own, for meetings that are left to its library: NCCL where every worker has a GPU to
itself, gloo under plan `ddp` on the CPU.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from time import perf_counter_ns as now
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from paceline.gradients.payload import GradientSum, Payload

if TYPE_CHECKING:
    from paceline.engines.local.methods.runner import PlanRunner


def join(library: str, meeting_place: Path, rank: int, ranks: int, deadline: float) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(meeting_place), ranks)  # type: ignore[attr-defined]  # as a URL, a path may not be relative nor hold a `#`
    dist.init_process_group(library, timeout=timedelta(seconds=deadline), store=store, rank=rank, world_size=ranks)


class GroupReduction:
    """The sum of all by one all_reduce of the library's, where the parameters are."""

    def __init__(self, runner: PlanRunner) -> None:
        self.workers, layout = runner.plan.workers, runner.arena.shape.layout
        device = runner.replica.device
        self.payload = Payload(layout, torch.zeros(Payload.length(layout), dtype=layout.dtype, device=device))
        # As a ring would send: all but one of the parts, twice.
        self.bytes = 2 * self.payload.flat.nbytes * (self.workers - 1) // self.workers

    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """The collective of this number: (the sum of all, nanoseconds in it, bytes sent)"""
        self.payload.write(computed)
        start = now()
        dist.all_reduce(self.payload.flat)
        met = self.payload.read(computed.samples)  # which waits for a device
        return met, now() - start, self.bytes

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        total, waited, sent = self.all_reduce(number, computed)
        return total.scaled(1.0 / self.workers), waited, sent
