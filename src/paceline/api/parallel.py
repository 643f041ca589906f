"""`parallel` trains in the user's own loop, in processes that `torchrun` started, under most plans.

    with paceline.parallel(model, optimizer, plan="downpour") as (model, optimizer):
        for inputs, target in loader:
            optimizer.zero_grad()
            loss_function(model(inputs), target).backward()
            optimizer.step()

Nothing in the loop changes. `optimizer.step()` follows the plan: it runs a collective with the other processes, or
pushes to the parameters that they share, and leaves the parameters for which the next gradient is to be computed.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from paceline.engines.local.arena import Arena, ArenaShape
from paceline.engines.local.loop_worker import LoopWorker, copy_values, statistics, tables
from paceline.engines.local.process import tune_for_speed
from paceline.errors import PlanError, UsageError
from paceline.errors.renames import RENAMED_ARGUMENTS, accepts_old_names
from paceline.gradients.learner import Learner
from paceline.gradients.replica import Replica
from paceline.jobs.job import Job
from paceline.links.locks import Locks
from paceline.links.membership import LocalProcesses
from paceline.links.memory import Memory, SharedTensors
from paceline.links.rendezvous import Rendezvous
from paceline.links.store_order import require_store_order
from paceline.parameters.layout import lay_out, trainable
from paceline.parameters.sparse_tables import check_optimizer
from paceline.plans.codecs import refuse_tables
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.server import CentreServer
from paceline.plans.plan import Plan
from paceline.runs.folder import RunFolder, emptied, new_folder
from paceline.runs.machine import this_machine
from paceline.runs.record import JobRecord, RunRecord, Status
from paceline.runs.schema import from_dict, to_dict
from paceline.runs.summary import summarize
from paceline.runs.trace import Kind, Trace

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

FOREVER = 1 << 40  # updates: the user's loop decides when to end


@accepts_old_names(RENAMED_ARGUMENTS["parallel"])
@contextmanager
def parallel(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: str | Plan = "ring",
    *,
    folder: str | Path | None = None,
    timeout: float = 120.0,
) -> Iterator[tuple[nn.Module, torch.optim.Optimizer]]:
    """Train `model` in your own loop, together with the other processes of this `torchrun` on this machine.

    All ranks start from the parameters and buffers of rank 0. Within the block `optimizer.step()` follows the plan.
    After it, all ranks hold the trained model and the optimizer's state that belongs to it.

    Args:
        plan: the plan, whose `workers` are the processes of this `torchrun`.
        folder: where rank 0 makes a run folder, for `paceline report`; None keeps nothing.
        timeout: seconds that a worker may wait for another before it raises, naming the other.
    """
    require_store_order("`parallel`")
    chosen, store, rank = _resolve_world(plan)
    _refuse(model, chosen)
    block = _Block(model, optimizer, chosen, store, rank, timeout, folder)
    before = vars(optimizer).get("step")  # a learning rate schedule may have wrapped it
    optimizer.step = types.MethodType(_step_of(block), optimizer)  # type: ignore[method-assign]
    try:
        yield model, optimizer
        block.finish()
    except BaseException as error:
        block.fail(error)
        raise
    finally:
        block.close()
        del optimizer.step
        if before is not None:
            optimizer.step = before  # type: ignore[method-assign]


def _step_of(block: _Block) -> Callable[..., Any]:
    """Return the function that takes the place of `optimizer.step` in a block."""

    def step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        block.step()
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return loss

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # or a schedule warns that it does not see steps
    return step


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


def _resolve_world(plan: str | Plan) -> tuple[Plan, Store, int]:
    """Return the plan for this number of processes, the store where they find each other, and this one's rank."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    ranks = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", 1))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 0))
    if here and here != ranks:
        raise UsageError(f"{ranks} processes on several machines ({here} here): this works on one machine, as yet")
    chosen = Plan.parse(plan, ranks)
    if chosen.workers != ranks:
        raise PlanError(
            f"plan {chosen} is for {chosen.workers} workers, but there are {ranks} processes; start as many with "
            f"`torchrun --nproc-per-node {chosen.workers}`, or leave `workers` out"
        )
    if ranks == 1:
        return chosen, HashStore(), 0
    store = _stores.next_block()
    return chosen, store, _stores.rank


def _refuse(model: nn.Module, plan: Plan) -> None:
    """Raise for models and plans that a user's own loop cannot train."""
    if why := plan.traits.needs_train:
        remedy = "use `paceline.train` for it"
        if isinstance(plan.method, NativeDdp):
            remedy = "leave out `paceline.parallel`, or name another plan, such as ring"
        raise PlanError(f"plan {plan.name} {why}; {remedy}")
    if plan.sizes or plan.chunks > 1:
        option = "sizes" if plan.sizes else "chunks"
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


class _TensorOutline(NamedTuple):
    """The outline of a parameter or buffer, equal on all ranks."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)} {self.dtype}{'' if self.requires_grad else ' without a gradient'}"


@dataclass(frozen=True)
class _Terms:
    """The terms of a block, which rank 0 sends to the other ranks."""

    plan: str
    model: tuple[_TensorOutline, ...]
    #: Bytes of the arena.
    size: int
    #: Bytes of the parameters and buffers that all ranks start from.
    start: int
    #: The run's folder; None if nothing is written.
    folder: str | None
    #: The origin of the trace, in nanoseconds of the monotonic clock.
    origin: int


class _Block:
    """The state of one `with parallel(...)` block."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, store: Store, rank: int, timeout: float,
        folder: str | Path | None,
    ) -> None:  # fmt: skip
        tune_for_speed()
        self.model, self.optimizer, self.rank = model, optimizer, rank
        moving, sparse = statistics(model), tables(model)
        if sparse and not plan.traits.takes_sparse:
            raise PlanError(
                f"parameter {sparse[0]} gets a sparse gradient, and plan {plan.name} exchanges dense ones; use "
                "downpour or ssp, where only touched rows travel, or sparse=False"
            )
        if sparse:
            refuse_tables(plan.name, plan.options.get("codec"), sparse[0])
            check_optimizer(optimizer, model, sparse, plan.traits.optimizer_at_server)
        layout = lay_out(model, plan.shards, moving)
        plan = plan.fitted(len(layout.shards))
        plan.method.prove(plan.workers)
        self.plan, self.names = plan, (*trainable(model), *moving)
        followers: list[torch.optim.Optimizer] = []
        job = Job(
            model, (), step=_no_rank, optimizer=lambda _: optimizer, lr_scheduler=followers.append, name=_script()
        )
        agenda = plan.agenda(plan.parts, plan.parts, FOREVER)
        shape = ArenaShape.of(plan, layout, agenda.leases, trainable(model), optimizer, sparse)
        rendezvous = Rendezvous(store, rank, plan.workers, timeout, "the beginning of `parallel`")
        self.arena, self.terms, self.pids = self._share(shape, rendezvous, folder)
        self._start_alike()
        self.own = [tensor.data for tensor in self._tensors()]
        learner = Learner(Replica(job, model, moving))
        self.worker = LoopWorker(
            self.arena, plan, agenda, learner, optimizer, followers, LocalProcesses(rank, self.pids), timeout
        )
        if isinstance(plan.method, CentreServer):  # the optimizers that step in its place share its state
            for follower in followers:
                follower.state = optimizer.state
        self.run_folder: RunFolder | None = None
        if self.terms.folder and rank == 0:
            self.run_folder = RunFolder(Path(self.terms.folder))
            self.run_folder.write(self._record(Status.RUNNING))

    def _tensors(self) -> list[Tensor]:
        named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return [named[name] for name in self.names]

    def _share(
        self, shape: ArenaShape, rendezvous: Rendezvous, folder: str | Path | None
    ) -> tuple[Arena, _Terms, list[int]]:
        """Share the arena that rank 0 makes, the parameters that all ranks start from, and all process ids."""
        everything = [t.detach() for t in (*self.model.parameters(), *self.model.buffers())]
        own: list[Any] = []  # made by rank 0, and kept open until every rank has it

        def make() -> tuple[list[int], dict[str, Any]]:
            arena, start = Arena.create(shape), SharedTensors(everything)
            if arena.desk is not None:
                arena.put_version_0(self.model, self.optimizer.state)
            path = str(new_folder(Path(folder), f"{_script()}-{self.plan.name}")) if folder is not None else None
            own.extend([arena, start, path])
            terms = _Terms(
                plan=str(self.plan), model=_outline(self.model), size=arena.memory.size, start=start.memory.size,
                folder=path, origin=time.perf_counter_ns(),
            )  # fmt: skip
            return [arena.memory.descriptor, start.memory.descriptor, arena.locks.descriptor], to_dict(terms)

        shared = rendezvous.share(make, lambda said: self._difference(from_dict(_Terms, said)))
        if isinstance(shared, str):
            with emptied(Path(own[-1]) if own and own[-1] else None):
                raise UsageError(shared)
        terms, (memory, start, locks) = from_dict(_Terms, shared.said), shared.descriptors
        if self.rank == 0:
            arena, self.start, _ = own
        else:
            arena = Arena(shape, Memory.of(memory, terms.size), Locks(locks))
            self.start = SharedTensors(everything, Memory.of(start, terms.start))
        return arena, terms, shared.pids

    def _difference(self, terms: _Terms) -> str:
        """Describe how this rank differs from rank 0; empty if it does not."""
        mine, theirs = _outline(self.model), terms.model
        if terms.plan != str(self.plan):
            return f"rank 0 follows plan {terms.plan}, and rank {self.rank} {self.plan}"
        if mine != theirs:
            pairs = itertools.zip_longest(mine, theirs, fillvalue="nothing")
            here, there = next(pair for pair in pairs if pair[0] != pair[1])
            return f"rank 0 has another model than rank {self.rank}: rank 0 has {there}, and rank {self.rank} {here}"
        return ""

    def _start_alike(self) -> None:
        everything = [t.detach() for t in (*self.model.parameters(), *self.model.buffers())]
        with torch.no_grad():
            for own, value in zip(everything, self.start.open(), strict=True):
                own.copy_(value)
        self.start.memory.close()

    def step(self) -> None:
        with torch.no_grad():
            self.worker.step()

    def finish(self) -> None:
        """End the method, wait for all ranks, and give the result to the model."""
        with torch.no_grad():
            self.worker.conclude()
            part = self._part(self.rank)
            if part is not None:
                np.save(part, self.worker.trace_rows())
            self.worker.leave()
            values = self.arena.values(self.names)
            self._give_back()
            copy_values(values, self._tensors())
            if self.plan.traits.optimizer_at_server:
                self.optimizer.state.update(self.arena.remembered(trainable(self.model)))
        if self.run_folder is not None:
            self._write(self.run_folder)

    def fail(self, error: BaseException) -> None:
        """End the block after an exception, and leave the model as it is."""
        self.worker.fail()
        self._give_back()
        if self.run_folder is not None:
            self.run_folder.write(self._record(Status.FAILED).with_(error=f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        self.worker.others.close()
        self.arena.close()
        if self.run_folder is not None:
            self.run_folder.close()

    def _give_back(self) -> None:
        """Copy parameters and buffers from shared memory back into the model's own."""
        with torch.no_grad():
            for tensor, own in zip(self._tensors(), self.own, strict=True):
                own.copy_(tensor)
                tensor.data = own

    # --- the run folder ---------------------------------------------------------------------------------------------

    def _part(self, rank: int) -> Path | None:
        return Path(self.terms.folder) / f"trace-{rank}.npy" if self.terms.folder else None

    def _write(self, folder: RunFolder) -> None:
        """Write the trace of all ranks and the summary, on rank 0 when all ranks have left the block."""
        parts = [part for rank in range(self.plan.workers) if (part := self._part(rank)) and part.exists()]
        rows = np.concatenate([*(np.load(part) for part in parts), self.worker.death_rows()])
        rows["start"] -= self.terms.origin
        rows["end"] -= self.terms.origin
        trace = Trace(rows[np.argsort(rows["end"], kind="stable")])
        folder.write_trace(trace)
        for part in parts:
            part.unlink()
        steps = int((rows["kind"] == Kind.COMPUTE).sum())
        seconds = (max(self.arena.ended) - self.terms.origin) / 1e9
        summary = summarize(
            trace, plan=str(self.plan), engine="script", workers=self.plan.workers, updates=steps, samples=steps,
            seconds=seconds,
        )  # fmt: skip
        folder.write(self._record(Status.DONE).with_(summary=replace(summary, run=str(folder.path))))

    def _record(self, status: Status) -> RunRecord:
        parameters = sum(p.numel() for p in trainable(self.model).values())
        return RunRecord(
            status=status, plan=str(self.plan), engine="script", compute="script", workers=self.plan.workers,
            threads=torch.get_num_threads(), shards=self.plan.shards,
            job=JobRecord(name=_script(), origin=sys.argv[0], parameters=parameters),
            notes=("a sample is one batch of the script's own loop; its loss is not known",), machine=this_machine(),
        )  # fmt: skip


def _no_rank(model: nn.Module, batch: Any) -> Tensor:
    raise AssertionError("the user's loop computes")


def _script() -> str:
    return Path(sys.argv[0]).stem or "script"


def _outline(model: nn.Module) -> tuple[_TensorOutline, ...]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return tuple(_TensorOutline(name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in named)
