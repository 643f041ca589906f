"""What a user's own loop can be trained by, and where the processes of its `torchrun` find each other."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.algorithms.cluster.launchers import value
from paceline.errors import JobWarning, PlanError, UsageError
from paceline.plans.plan import Plan
from paceline.plans.recipe import refuse_tables
from paceline.runtime.engines.workers.loop_worker import tables
from paceline.training.jobs.several import refuse_closures
from paceline.training.parameters.rows import check_optimizer

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class _Stores:
    """The store through which the processes of a `torchrun` find each other; rank 0 hosts it until it ends."""

    store: Store | None = None
    rank = 0
    #: Blocks that were entered so far, the same number on all ranks.
    blocks = 0

    def next_block(self) -> Store:
        """Return a store for the next block, with keys of its own."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        if self.store is None and dist.is_initialized():
            self.store, self.rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
        elif self.store is None:
            self.store, self.rank, _ = next(rendezvous("env://", timeout=timedelta(seconds=120)))
        self.blocks += 1
        return PrefixStore(f"paceline.parallel {self.blocks}", self.store)


_stores = _Stores()


def plan_here(plan: str | Plan) -> Plan:
    """Return the plan for this number of processes."""
    import torch.distributed as dist

    ranks = dist.get_world_size() if dist.is_initialized() else value(os.environ, "WORLD_SIZE") or 1
    local_size = value(os.environ, "LOCAL_WORLD_SIZE")
    if local_size and local_size != ranks:
        raise UsageError(
            f"{ranks} processes on several machines ({local_size} here): this works on one machine, as yet"
        )
    chosen = Plan.parse(plan, ranks)
    if chosen.workers != ranks:
        raise PlanError(
            f"plan {chosen} is for {chosen.workers} workers, but there are {ranks} processes; start as many with "
            f"`torchrun --nproc-per-node {chosen.workers}`, or leave `workers` out"
        )
    return chosen


def meet(plan: Plan) -> tuple[Store, int]:
    """Return the store where the processes find each other, and this one's rank."""
    from torch._C._distributed_c10d import HashStore

    if plan.workers == 1:
        return HashStore(), 0
    store = _stores.next_block()
    return store, _stores.rank


class FirstGradients:
    """Notices that two ranks begin with the same gradient: then they read the same batches, and nothing is gained."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank, self._steps, self._digest = store, rank, 0, ""

    def before_step(self, parameters: Iterable[nn.Parameter]) -> None:
        """Publish the gradient of the first step; at the second, warn if the rank before had the same."""
        self._steps += 1
        if self._steps == 1:
            gradients = [p.grad for p in parameters if p.grad is not None and p.grad.layout == torch.strided]
            if any(gradient.any() for gradient in gradients):
                digest = hashlib.sha256()
                for gradient in gradients:
                    digest.update(gradient.reshape(-1).contiguous().view(torch.uint8).numpy().data)
                self._digest = digest.hexdigest()
            self._store.set(str(self._rank), self._digest)
        elif self._steps == 2 and self._rank and self._digest:
            other = str(self._rank - 1)
            if self._store.check([other]) and self._store.get(other) == self._digest.encode():
                warnings.warn(
                    f"ranks {other} and {self._rank} began with the same gradient, bit for bit: do they read the same "
                    "batches? Each needs its own, as by DataLoader(dataset, sampler=DistributedSampler(dataset))",
                    JobWarning,
                    stacklevel=4,
                )


def refuse(model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan) -> None:
    """Raise for models, optimizers and plans that a user's own loop cannot train."""
    refuse_closures(optimizer)
    if why := plan.traits.needs_train:
        remedy = "use `paceline.train` for it"
        if not plan.traits.traced:  # PyTorch's own code
            remedy = "leave out `paceline.parallel`, or name another plan, such as ring"
        raise PlanError(f"plan {plan.name} {why}; {remedy}")
    if plan.sizes or plan.chunks > 1 or plan.canonical:
        option = "canonical" if plan.canonical else "sizes" if plan.sizes else "chunks"
        raise PlanError(
            f"plan {plan}: {option}= divides batches, and here your loop does; leave it out, or use `paceline.train`"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise UsageError(
            "this model is wrapped in DistributedDataParallel, which has its own collectives: give model.module"
        )
    elsewhere = next((p.device for p in model.parameters() if p.device.type != "cpu"), None)
    if elsewhere is not None:
        raise UsageError(f"the model is on {elsewhere}: this works on the CPU, where processes share memory")
    sparse = tables(model)
    if sparse and not plan.traits.takes_sparse:
        raise PlanError(
            f"parameter {sparse[0]} gets a sparse gradient, and plan {plan.name} exchanges dense ones; use "
            "downpour or ssp, where only touched rows travel, or sparse=False"
        )
    if sparse:
        refuse_tables(plan.name, plan.options.get("codec"), sparse[0])
        check_optimizer(optimizer, model, sparse, plan.traits.optimizer_at_server)
