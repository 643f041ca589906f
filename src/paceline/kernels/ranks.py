"""One network trained by all ranks of an MPI program.

    node 0   rank 0   rank 1          node 1   rank 2   rank 3
             └─ one window ─┘                  └─ one window ─┘
             weights, gradients, the row       its own
             of work
                    └──── one all-reduce of the flat gradient per update ────┘

Within a node the ranks are one team, as threads are: weights, gradients of chunks and the row of work lie in memory
that all of them see, and whoever is free takes the next item. So the result has the bits of any number of threads.
Between nodes each has a share of every batch, and the gradients are added up by MPI.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import paceline.kernels.machine as machine
from paceline.kernels.apart import Apart
from paceline.kernels.build import library
from paceline.kernels.checks import device_of
from paceline.kernels.compiled import Compiled
from paceline.kernels.fused import loss_kind
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import Plan

DONE = 15  # the number of the team that says that the leader is done
ONLOOKERS = 1e-3  # seconds between two looks of a rank that has no core
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
) -> Apart:
    """As `fuse`, by all ranks of `world`, which call this and everything else of it together, with equal models: on the
    CPU, or each on the GPU that its model lies on.

    threads   of each rank; default: the cores of a node, shared out among its ranks
    world     an mpi4py communicator; default: COMM_WORLD
    node      the ranks of `world` that share this one's memory; default: as MPI says
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise CannotFuse(f"ranks need mpi4py and an MPI ({error}): pip install mpi4py mpich") from error
    world = world or MPI.COMM_WORLD
    if (where := device_of(model)).type == "cuda":
        from paceline.kernels.cuda.ranks import ranks_on_devices

        return ranks_on_devices(model, loss_kind(loss), optimizer, batch_size, world, where.index or 0)
    node = node or world.Split_type(MPI.COMM_TYPE_SHARED)
    cores = machine.cores(set().union(*node.allgather(os.sched_getaffinity(0))))
    threads = threads or max(1, cores // node.size)
    return Ranks(model, loss_kind(loss), optimizer, batch_size, threads, world, node, cores)


def own_rank() -> int:
    """Among those of this machine."""
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).rank)


class Ranks(Apart):
    def __init__(
        self, model: nn.Module, loss: str, optimizer: Callable[..., torch.optim.Optimizer] | None, batch_size: int,
        threads: int, world: Any, node: Any, cores: int,
    ) -> None:  # fmt: skip
        super().__init__(model, loss, optimizer, batch_size, threads, 0.0)
        self.world, self.node = world, node
        # More ranks than cores: the rest look on, since one that has work but no core holds up all.
        self.works = node.rank < max(1, cores // self.threads)
        self.heads = world.Split(0 if node.rank == 0 else 1, world.rank)  # of the nodes, the first rank of each
        nodes = node.bcast((self.heads.rank, self.heads.size) if node.rank == 0 else None)
        self.number, self.nodes = nodes
        self._windows: list[Any] = []

    @property
    def leads(self) -> bool:
        return bool(self.node.rank == 0)

    def close(self) -> None:
        for window in self._windows:
            window.Free()
        self._windows, self._compiled = [], {}

    def _text(self, plan: Plan, rule: Rule) -> str:
        source = super()._text(plan, rule)
        if self.leads:
            library(source)
        self.node.Barrier()  # the others find it made
        return source

    def _memory(self, plan: Plan, rule: Rule) -> dict[str, Tensor]:
        private = super()._memory(plan, rule)
        alone = {"arenas"} if len(plan.phases) == 1 else set()
        shared = {name: tensor for name, tensor in private.items() if name not in alone}
        views = self._window({name: (t.numel(), t.dtype) for name, t in shared.items()})
        return private | views

    def _window(self, parts: dict[str, tuple[int, torch.dtype]]) -> dict[str, Tensor]:
        """Tensors that all ranks of the node see."""
        from mpi4py import MPI

        starts, size = {}, LINE
        for name, (count, dtype) in parts.items():
            starts[name], size = size, size + -(-count * dtype.itemsize // LINE) * LINE
        window = MPI.Win.Allocate_shared(size + LINE if self.leads else 0, 1, comm=self.node)
        self._windows.append(window)
        memory: Any = window.Shared_query(0)[0]
        raw = torch.from_numpy(np.frombuffer(memory, dtype=np.uint8))
        raw = raw[-raw.data_ptr() % LINE :]
        if self.leads:
            raw.zero_()
        self.node.Barrier()
        return {
            name: raw[start : start + parts[name][0] * parts[name][1].itemsize].view(parts[name][1])
            for name, start in starts.items()
        }

    def _room(self, made: Compiled, batch: int) -> None:
        needed = -(-batch // made.plan.target.lanes) * made.plan.sizes["arena"] * made.plan.target.lanes
        if len(made.plan.phases) > 1 and made.memory["arenas"].numel() < needed:
            made.memory |= self._window({"arenas": (needed, self.dtype)})

    def _meet(self) -> None:
        self.node.Barrier()

    def _work(self, made: Compiled, call: Any) -> None:
        team = made.memory["team"]
        if self.works:
            super()._work(made, call)
        if self.leads:
            team[DONE] = 1
        while not self.works and not team[DONE]:
            time.sleep(ONLOOKERS)
