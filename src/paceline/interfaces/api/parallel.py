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
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import UsageError, is_positive
from paceline.errors.arguments import check_arguments
from paceline.errors.renames import RENAMED_ARGUMENTS, accepts_old_names
from paceline.interfaces.api.parallel_world import FirstGradients, meet, plan_here, refuse
from paceline.plans.plan import Plan
from paceline.runtime.engines.servers.ports import version_shapes
from paceline.runtime.engines.workers.arena import Arena, ArenaShape
from paceline.runtime.engines.workers.loop_worker import LoopWorker, copy_values, endless, statistics, tables
from paceline.runtime.engines.workers.process import tune_for_speed
from paceline.runtime.links.membership import LocalProcesses, Locks
from paceline.runtime.links.memory import Memory, SharedTensors, require_store_order
from paceline.runtime.links.rendezvous import Rendezvous
from paceline.runtime.runs.record import JobRecord, RunFolder, RunRecord, Status, emptied, new_folder, this_machine
from paceline.runtime.runs.schema import from_dict, to_dict
from paceline.runtime.runs.time_accounting import summarize
from paceline.runtime.runs.trace import Kind, Trace
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import lay_out, trainable

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@accepts_old_names(RENAMED_ARGUMENTS["parallel"])
def parallel(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: str | Plan = "ring",
    *,
    folder: str | Path | None = None,
    timeout: float = 120.0,
) -> AbstractContextManager[tuple[nn.Module, torch.optim.Optimizer]]:
    """Train `model` in your own loop, together with the other processes of this `torchrun` on this machine.

    All ranks start from the parameters and buffers of rank 0. Within the block `optimizer.step()` follows the plan.
    After it, all ranks hold the trained model and the optimizer's state that belongs to it.

    Args:
        plan: the plan, whose `workers` are the processes of this `torchrun`.
        folder: where rank 0 makes a run folder, for `paceline report`; None keeps nothing.
        timeout: seconds that a worker may wait for another before it raises, naming the other.
    """
    check_arguments(parallel, locals())
    if not is_positive(timeout):
        raise UsageError(f"timeout={timeout!r}: give how many seconds a worker may wait for another, such as 120")
    require_store_order("`parallel`")
    chosen = plan_here(plan)
    refuse(model, optimizer, chosen)
    return _block(model, optimizer, chosen, timeout, folder)


@contextmanager
def _block(
    model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, timeout: float, folder: str | Path | None
) -> Iterator[tuple[nn.Module, torch.optim.Optimizer]]:
    """Let a plan that this world can follow take the place of `optimizer.step()`."""
    store, rank = meet(plan)
    block = _Block(model, optimizer, plan, store, rank, timeout, folder)
    before = dict(vars(optimizer))  # a learning rate schedule may have wrapped `step`
    replaced = _methods_of(block)
    vars(optimizer).update({name: types.MethodType(method, optimizer) for name, method in replaced.items()})
    try:
        yield model, optimizer
        block.finish()
    except BaseException as error:
        block.fail(error)
        raise
    finally:
        block.close()
        for name in replaced:
            del vars(optimizer)[name]
            if name in before:
                vars(optimizer)[name] = before[name]


def _methods_of(block: _Block) -> dict[str, Callable[..., Any]]:
    """Return the methods of the optimizer in a block, by name."""
    traits, plan = block.plan.traits, block.plan.name

    def state_dict(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return block.with_state(type(optimizer).state_dict)

    def load_state_dict(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        raise UsageError(
            f"load_state_dict() within `parallel`, where plan {plan} keeps the optimizer's state in memory that the "
            "ranks share; load it before the block begins"
        )

    def add_param_group(optimizer: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
        raise UsageError(
            "add_param_group() within `parallel`, where the parameters are fixed; call it before the block"
        )

    methods: dict[str, Callable[..., Any]] = {"step": _step_of(block), "add_param_group": add_param_group}
    if traits.optimizer_at_server:
        methods["state_dict"] = state_dict
    if traits.optimizer_at_server or block.plan.method.exchange is not None:
        methods["load_state_dict"] = load_state_dict
    return methods


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


class _TensorOutline(NamedTuple):
    """The outline of a parameter or buffer, equal on all ranks."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)} {self.dtype}{'' if self.requires_grad else ' without a gradient'}"


@dataclass(frozen=True)
class _ParallelTerms:
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
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        store: Store,
        rank: int,
        timeout: float,
        folder: str | Path | None,
    ) -> None:
        from torch._C._distributed_c10d import PrefixStore

        tune_for_speed()
        self.model, self.optimizer, self.rank = model, optimizer, rank
        moving, sparse = statistics(model), tables(model)
        layout = lay_out(model, plan.shards, moving)
        plan = plan.fitted(len(layout.shards))
        plan.check_fragments(len(trainable(model)))
        plan.method.prove(plan.workers)
        self.plan, self.names = plan, (*trainable(model), *moving)
        followers: list[torch.optim.Optimizer] = []
        job = Job(
            model, (), step=_no_rank, optimizer=lambda _: optimizer, lr_scheduler=followers.append, name=_script()
        )
        server = plan.method.server
        versions = version_shapes(server, layout, trainable(model), optimizer, sparse) if server is not None else ()
        shape = ArenaShape.of(plan, layout, endless(plan).leases, versions)
        rendezvous = Rendezvous(store, rank, plan.workers, timeout, "the beginning of `parallel`")
        self.first_gradients = FirstGradients(PrefixStore("first gradients", store), rank)
        self.arena, self.terms, self.pids = self._share(shape, rendezvous, folder)
        self._start_alike()
        self.own = [tensor.data for tensor in self._tensors()]
        learner = Learner(Replica(job, model, moving))
        self.worker = LoopWorker(
            self.arena, plan, learner, optimizer, followers, LocalProcesses(rank, self.pids), timeout
        )
        learner.observe = self.worker.runner.measure
        if plan.method.exchange is not None:  # the optimizers that step in its place share its state
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
    ) -> tuple[Arena, _ParallelTerms, list[int]]:
        """Share the arena that rank 0 makes, the parameters that all ranks start from, and all process ids."""
        everything = [t.detach() for t in (*self.model.parameters(), *self.model.buffers())]
        resources: list[Any] = []  # made by rank 0, and kept open until every rank has it

        def make() -> tuple[list[int], dict[str, Any]]:
            arena, start = Arena.create(shape), SharedTensors(everything)
            if arena.desk is not None:
                arena.put_version_0(self.model, self.optimizer.state)
            path = str(new_folder(Path(folder), f"{_script()}-{self.plan.name}")) if folder is not None else None
            resources.extend([arena, start, path])
            terms = _ParallelTerms(
                plan=str(self.plan),
                model=_outline(self.model),
                size=arena.memory.size,
                start=start.memory.size,
                folder=path,
                origin=time.perf_counter_ns(),
            )
            return [arena.memory.descriptor, start.memory.descriptor, arena.locks.descriptor], to_dict(terms)

        shared = rendezvous.share(make, lambda said: self._difference(from_dict(_ParallelTerms, said)))
        if isinstance(shared, str):
            with emptied(Path(resources[-1]) if resources and resources[-1] else None):
                raise UsageError(shared)
        terms, (memory, start, locks) = from_dict(_ParallelTerms, shared.said), shared.descriptors
        if self.rank == 0:
            arena, self.start, _ = resources
        else:
            arena = Arena(shape, Memory.of(memory, terms.size), Locks(locks))
            self.start = SharedTensors(everything, Memory.of(start, terms.start))
        return arena, terms, shared.pids

    def _difference(self, terms: _ParallelTerms) -> str:
        """Describe how this rank differs from rank 0; empty if it does not."""
        mine, theirs = _outline(self.model), terms.model
        if terms.plan != str(self.plan):
            return f"rank 0 follows plan {terms.plan}, and rank {self.rank} {self.plan}"
        if mine != theirs:
            pairs = itertools.zip_longest(mine, theirs, fillvalue="nothing")
            local, leader = next(pair for pair in pairs if pair[0] != pair[1])
            return f"rank 0 has another model than rank {self.rank}: rank 0 has {leader}, and rank {self.rank} {local}"
        return ""

    def _start_alike(self) -> None:
        everything = [t.detach() for t in (*self.model.parameters(), *self.model.buffers())]
        with torch.no_grad():
            for tensor, first in zip(everything, self.start.open(), strict=True):
                tensor.copy_(first)
        self.start.memory.close()

    def step(self) -> None:
        self.first_gradients.before_step(self.model.parameters())
        with torch.no_grad():
            self.worker.step()

    def with_state(self, function: Callable[[torch.optim.Optimizer], dict[str, Any]]) -> dict[str, Any]:
        """Return what a function makes of the optimizer, with the state that the shards have at this moment."""
        saved_state = dict(self.optimizer.state)
        self.optimizer.state.update(self.worker.remembered(trainable(self.model)))
        try:
            return function(self.optimizer)
        finally:
            self.optimizer.state.clear()
            self.optimizer.state.update(saved_state)

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
            for tensor, original in zip(self._tensors(), self.own, strict=True):
                original.copy_(tensor)
                tensor.data = original

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
            trace,
            plan=str(self.plan),
            engine="script",
            workers=self.plan.workers,
            updates=steps,
            samples=steps,
            seconds=seconds,
        )
        folder.write(self._record(Status.DONE).with_(summary=replace(summary, run=str(folder.path))))

    def _record(self, status: Status) -> RunRecord:
        parameters = sum(p.numel() for p in trainable(self.model).values())
        return RunRecord(
            status=status,
            plan=str(self.plan),
            engine="script",
            compute="script",
            workers=self.plan.workers,
            threads=torch.get_num_threads(),
            shards=self.plan.shards,
            job=JobRecord(name=_script(), origin=sys.argv[0], parameters=parameters),
            notes=("a sample is one batch of the script's own loop; its loss is not known",),
            machine=this_machine(),
        )


def _no_rank(model: nn.Module, batch: Any) -> Tensor:
    raise AssertionError("the user's loop computes")


def _script() -> str:
    return Path(sys.argv[0]).stem or "script"


def _outline(model: nn.Module) -> tuple[_TensorOutline, ...]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return tuple(_TensorOutline(name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in named)
