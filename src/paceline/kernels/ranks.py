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

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import paceline.kernels.machine as machine
from paceline.kernels.compiled import Compiled
from paceline.kernels.fused import Fused, loss_kind
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.optimizers import Rule
from paceline.kernels.plan import CHUNKS, Plan

DONE = 15  # the number of the team that says that the leader is done
ONLOOKERS = 1e-3  # seconds between two looks of a rank that has no core
LINE = 64  # bytes that no two of the window's parts share


def fuse_ranks(
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: Callable[..., torch.optim.Optimizer],
    batch_size: int,
    *,
    threads: int | None = None,
    world: Any = None,
    node: Any = None,
) -> Ranks:
    """As `fuse`, by all ranks of `world`, which call this and everything else of it together, with equal models.

    threads   of each rank; default: the cores of a node, shared out among its ranks
    world     an mpi4py communicator; default: COMM_WORLD
    node      the ranks of `world` that share this one's memory; default: as MPI says
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise CannotFuse(f"ranks need mpi4py and an MPI ({error}): pip install mpi4py mpich") from error
    world = world or MPI.COMM_WORLD
    node = node or world.Split_type(MPI.COMM_TYPE_SHARED)
    cores = machine.cores(set().union(*node.allgather(os.sched_getaffinity(0))))
    threads = threads or max(1, cores // node.size)
    return Ranks(model, loss_kind(loss), optimizer, batch_size, threads, world, node, cores)


class Ranks(Fused):
    def __init__(
        self, model: nn.Module, loss: str, optimizer: Callable[..., torch.optim.Optimizer], batch_size: int,
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
        """Give the windows back; together, and before MPI ends."""
        for window in self._windows:
            window.Free()
        self._windows, self._compiled = [], {}

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

    def _run(self, made: Compiled, call: Any) -> None:
        if self.nodes == 1:
            super()._run(made, call)
        else:
            self._run_apart(made, call)

    def _work(self, made: Compiled, call: Any) -> None:
        team = made.memory["team"]
        if self.works:
            super()._work(made, call)
        if self.leads:
            team[DONE] = 1
        while not self.works and not team[DONE]:
            time.sleep(ONLOOKERS)

    def _run_apart(self, made: Compiled, call: Any) -> None:
        """Update by update: this node's share of the batch, the sum of all nodes, the step."""
        from mpi4py import MPI

        whole, order, first, updates, seed = call.samples, call.order, call.update, call.updates, call.seed
        gradient = made.memory["gradients"][: made.plan.sizes["weights"]].numpy()
        losses = made.memory["losses"][CHUNKS * made.plan.target.lanes :].numpy()
        for update in range(updates):
            begin = update * call.batch
            size = min(call.batch, whole - begin)
            mine = [size * part // self.nodes for part in (self.number, self.number + 1)]
            share = (mine[1] - mine[0]) / size
            before = losses.copy()
            call.order, call.samples, call.updates, call.update = (
                order + 8 * (begin + mine[0]),
                mine[1] - mine[0],
                1,
                -1,
            )
            call.seed = _mixed(seed, first + update, self.number)
            if share:
                super()._run(made, call)
            if self.leads:
                gradient[:] = gradient * share if share else 0
                losses[:] = before + (losses - before) * share
                self.heads.Allreduce(MPI.IN_PLACE, gradient, MPI.SUM)
            self._meet()
            call.update = first + update
            if self.leads:
                made.apply(ctypes.byref(call))
            self._meet()
        if self.leads:
            self.heads.Allreduce(MPI.IN_PLACE, losses, MPI.SUM)
        self._meet()


def _mixed(*numbers: int) -> int:
    """Of an update on a node: chance in the text is that of a seed and a place in the batch."""
    found = 0
    for number in numbers:
        found = (found * 0x9E3779B97F4A7C15 + number + 0x632BE59BD9B4E019) % 2**63
    return found
