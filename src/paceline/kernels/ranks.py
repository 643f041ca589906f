"""One network trained by all ranks of an MPI program.

    node 0   rank 0   rank 1          node 1   rank 2   rank 3
             └─ one window ─┘                  └─ one window ─┘
             weights, gradients, the row       its own
             of work
                    └──── one all-reduce of the flat gradient per update ────┘

Within a node the ranks are one team, as threads are: weights, gradients of chunks and the row of work lie in memory
that all of them see, and a rank that is free takes the next item. So the result has the bits of any number of threads.
Between nodes each has a share of every batch, and the gradients are summed by MPI.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import paceline.kernels.machine as machine
from paceline.kernels.cuda.device import nvidia
from paceline.kernels.cuda.gpu import Gpu
from paceline.kernels.fused import Fused, device_of
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.losses import loss_kind
from paceline.kernels.processors import Cpu, Nodes, OneProcess, Runner, Sizes
from paceline.kernels.weights import OneModel

DONE = 15  # the number of the row of work that says that the leading rank is done
IDLE = 1e-3  # seconds between two looks of a rank that has no core
LINE = 64  # bytes that no two of the window's parts share


def fuse_ranks(
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: Callable[..., torch.optim.Optimizer] | None,
    batch_size: int,
    *,
    threads: int | None = None,
    world: Any = None,
    node: Any = None,
) -> Fused:
    """Fuses a model as `fuse` does, by all ranks of `world`: on the CPU, or each on the GPU that its model lies on.

    The ranks call this and every method of the result together, with equal models.

    threads   of each rank; default: the cores of a node, shared out among its ranks
    world     an mpi4py communicator; default: COMM_WORLD
    node      the ranks of `world` that share this one's memory; default: as MPI says
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise CannotFuse(f"ranks need mpi4py and an MPI ({error}): pip install mpi4py mpich") from error
    world = world or MPI.COMM_WORLD
    weights, kind = OneModel(model, optimizer), loss_kind(loss)
    if (where := device_of(model)).type == "cuda":
        # Devices share no memory, so each rank is a node.
        runner = Runner(Gpu(nvidia(where.index or 0)), OneProcess(), Nodes(world.rank, world.size, world, world))
        return Fused(weights, kind, batch_size, runner)
    node = node or world.Split_type(MPI.COMM_TYPE_SHARED)
    cores = machine.cores(set().union(*node.allgather(os.sched_getaffinity(0))))
    cpu = Cpu(threads or max(1, cores // node.size))
    return Fused(weights, kind, batch_size, Runner(cpu, SharedNode(node, cores // cpu.threads), _nodes(world, node)))


def own_rank() -> int:
    """This rank's number among those of its machine."""
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).rank)


def _nodes(world: Any, node: Any) -> Nodes:
    """This rank's node among all nodes of the program."""
    heads = world.Split(0 if node.rank == 0 else 1, world.rank)
    number, count = node.bcast((heads.rank, heads.size) if node.rank == 0 else None)
    return Nodes(number, count, heads, world)


class SharedNode:
    """The ranks of a node, with windows of MPI's that all of them see.

    comm      their mpi4py communicator
    workers   how many of them there are cores for
    """

    def __init__(self, comm: Any, workers: int) -> None:
        self.comm = comm
        self.leads = bool(comm.rank == 0)
        # With more ranks than cores the rest only wait: a rank that has work but no core holds up all others.
        self.works = bool(comm.rank < max(1, workers))
        self._windows: list[Any] = []

    @contextmanager
    def first(self) -> Iterator[None]:
        if not self.leads:
            self.comm.Barrier()
        yield
        if self.leads:
            self.comm.Barrier()

    def allocate(self, sizes: Sizes, where: torch.device) -> dict[str, Tensor]:
        from mpi4py import MPI

        starts, size = {}, LINE
        for name, (count, dtype) in sizes.items():
            starts[name], size = size, size + -(-count * dtype.itemsize // LINE) * LINE
        window = MPI.Win.Allocate_shared(size + LINE if self.leads else 0, 1, comm=self.comm)
        self._windows.append(window)
        memory: Any = window.Shared_query(0)[0]
        raw = torch.from_numpy(np.frombuffer(memory, dtype=np.uint8))
        raw = raw[-raw.data_ptr() % LINE :]
        if self.leads:
            raw.zero_()
        self.comm.Barrier()
        return {
            name: raw[start : start + sizes[name][0] * sizes[name][1].itemsize].view(sizes[name][1])
            for name, start in starts.items()
        }

    def barrier(self) -> None:
        self.comm.Barrier()

    def work(self, run: Callable[[], None], team: Tensor) -> None:
        if self.works:
            run()
        if self.leads:
            team[DONE] = 1
        while not self.works and not team[DONE]:
            time.sleep(IDLE)

    def close(self) -> None:
        for window in self._windows:
            window.Free()
        self._windows = []
