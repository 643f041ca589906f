"""Collectives that PyTorch's process group runs: NCCL where each worker has a GPU, gloo for `ddp` on the CPU."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from time import perf_counter_ns as now

import torch
import torch.distributed as dist

from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import Layout


def join(library: str, rendezvous: Path, rank: int, ranks: int, deadline: float) -> None:
    """Join the process group whose ranks find each other through the file `rendezvous`."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # An init_method URL would refuse a relative path and one with a `#`.
    store = dist.FileStore(str(rendezvous), ranks)  # type: ignore[attr-defined]
    dist.init_process_group(library, timeout=timedelta(seconds=deadline), store=store, rank=rank, world_size=ranks)


class GroupReduction:
    """Adds gradients up by one all_reduce of the process group, on the device that holds the parameters."""

    def __init__(self, workers: int, layout: Layout, device: torch.device) -> None:
        self.workers = workers
        self.payload = Payload(layout, torch.zeros(Payload.length(layout), dtype=layout.dtype, device=device))
        # What a ring would send; the library does not say what it sent.
        self.bytes = 2 * self.payload.flat.nbytes * (self.workers - 1) // self.workers

    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number; return (the sum of all workers, nanoseconds in it, bytes sent)."""
        self.payload.write(computed)
        start = now()
        dist.all_reduce(self.payload.flat)
        total = self.payload.read(computed.samples)  # copies from the device, and so waits for it
        return total, now() - start, self.bytes

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        total, waited, sent = self.all_reduce(number, computed)
        return total.scaled(1.0 / self.workers), waited, sent
