"""A worker that is the user's own process: the user's loop computes, and `optimizer.step()` runs the plan's method.

    the user's loop                                  the method of the plan (`methods`)
    ───────────────                                  ──────────────────────────────────
    loss.backward()
    optimizer.step() ──────── gradients ───────────▶ runs a collective, pushes, waits at the gate
                     ◀── requests the next ones ────

There is no parent, since another program started the processes. Rank 0 makes the arena; a rank that waits checks that
the others are alive; each rank keeps its own part of the trace.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from time import perf_counter_ns as now
from typing import Any

import numpy as np
from torch import Tensor, nn

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.server.messages import Death
from paceline.errors import RunFailed
from paceline.plans.plan import Plan
from paceline.runtime.engines.workers.arena import DESK_LOCK, Arena
from paceline.runtime.engines.workers.group import FixedGroup
from paceline.runtime.engines.workers.methods.runner import PlanRunner
from paceline.runtime.engines.workers.performer import walk_of
from paceline.runtime.engines.workers.state_buffers import ResumePoint
from paceline.runtime.engines.workers.worker_context import Station, WorkerContext
from paceline.runtime.links.membership import LocalProcesses
from paceline.runtime.links.waiting import Cancelled
from paceline.runtime.runs.trace import Columns, Kind, Row, Trace
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.optimizers import Optimizer

FAILED = -1  # in `arena.ended`: the rank left the block by an exception
FOREVER = 1 << 40  # updates: the user's loop decides when to end
PATIENCE = 0.05  # seconds between two checks whether every rank has left


def endless(plan: Plan) -> Agenda:
    """Return the agenda of a user's loop, which divides its data itself and ends when it likes."""
    return plan.agenda(plan.parts, plan.parts, FOREVER)


class LoopWorker:
    """A rank in a user-defined loop, and the `Host` of its runner."""

    snapshots_every = 0

    def __init__(
        self,
        arena: Arena,
        plan: Plan,
        learner: Learner,
        optimizer: Optimizer,
        followers: list[Optimizer],
        others: LocalProcesses,
        deadline: float,
    ) -> None:
        self.number, self.arena, self.plan = others.rank, arena, plan
        self.others, self.followers = others, followers
        #: This rank has left the block.
        self.left = False
        #: Why the run is cancelled; None while it is not.
        self.cancel_reason: str | None = None
        self.rows: list[Columns] = []
        #: Ranks whose death was reported to the desk.
        self.dead_workers: set[int] = set()
        waiter = arena.waiter(self.number, self.cancelled, deadline, plan.threads)
        agenda = endless(plan)
        station = Station(self.number, arena.of_worker(self.number), waiter, self, ResumePoint())
        group = FixedGroup(self.number, arena, agenda, waiter, plan.membership())
        self.runner = PlanRunner(station, plan, agenda, learner, optimizer, arena.shape.layout, group)
        self.desk_lock = arena.lock(DESK_LOCK, waiter, "the desk")
        self.shard_locks = [arena.lock(n + 1, waiter, f"shard {n}") for n in range(len(arena.shards))]
        walk = walk_of(self.runner, arena)
        assert walk is not None, "`parallel` refuses methods without one"
        self.walk = walk
        self.due = next(self.walk)
        self.since = now()

    def step(self) -> None:
        """Take the gradients from the parameters and run the method until it requests the next ones."""
        runner, due = self.runner, self.due
        self._follow_settings()
        runner.doing(due.update)
        computed = self._computed()
        runner.record(Kind.COMPUTE, due.update, -1, due.version, -1, self.since, now(), runner.waited, 1, 0, math.nan)
        runner.waited = 0
        try:
            self.due = self.walk.send(computed)
        except Cancelled:
            raise RunFailed(self.cancel_reason) from None
        self.since = now()

    def _follow_settings(self) -> None:
        """Copy the settings of the user's optimizer, which a schedule may change, to those that step in its place."""
        optimizer = self.runner.optimizer
        for follower in self.followers:
            if follower is not optimizer:
                for source, group in zip(optimizer.param_groups, follower.param_groups, strict=True):
                    group.update({key: value for key, value in source.items() if key != "params"})

    def _computed(self) -> GradientSum:
        """Return this worker's gradient; where gradients are summed, its share of their mean."""
        replica = self.runner.replica
        dtype = replica.parameters[0].dtype
        buffers = [b.to(dtype, copy=True) for b in replica.moving]
        computed = GradientSum(replica.take(), buffers, 0.0, 1.0, 1)
        return computed.scaled(1.0 / self.plan.workers) if self.plan.traits.sums_gradients else computed

    def remembered(self, named: dict[str, nn.Parameter]) -> dict[Tensor, dict[str, Any]]:
        """Return the state of the optimizer at the shards, while no rank pushes."""
        try:
            with contextlib.ExitStack() as locked:
                for lock in self.shard_locks:
                    locked.enter_context(lock)
                return self.arena.remembered(named)
        except Cancelled:
            raise RunFailed(self.cancel_reason) from None

    def conclude(self) -> None:
        """End the method, which may run a last collective."""
        try:
            self.walk.send(None)
        except StopIteration:
            return
        except Cancelled:
            raise RunFailed(self.cancel_reason) from None

    def leave(self) -> None:
        """Mark this rank as finished and wait until every rank is."""
        self._mark_left(now())
        while not self.cancelled():
            if all(ended or other in self.dead_workers for other, ended in enumerate(self.arena.ended)):
                return
            time.sleep(PATIENCE)
        raise RunFailed(self.cancel_reason)

    def fail(self) -> None:
        """Mark this rank as failed by an exception, so that no rank waits for it."""
        self._mark_left(FAILED)

    def _mark_left(self, when: int) -> None:
        self.left = True
        if not self.plan.traits.synchronous:
            self._handle_death(self.number)
        self.arena.ended[self.number] = when
        for doorbell in self.arena.doorbells:
            doorbell.ring()

    def cancelled(self) -> bool:
        """Check the other ranks: if one has died, a plan that cannot continue without it is cancelled."""
        if not self.plan.traits.synchronous:
            for change in self.others.changes():
                if self.arena.ended[change.rank] <= 0 and change.rank not in self.dead_workers:
                    self._handle_death(change.rank)
            return False
        self.cancel_reason = self._what_is_wrong(
            {other for other in self.others.gone() if self.arena.ended[other] <= 0}
        )
        return self.cancel_reason is not None

    def _what_is_wrong(self, departed: set[int]) -> str | None:
        """Return why this rank cannot continue; None if it can."""
        doing = self.arena.doing
        where = f"worker {self.number} cannot continue after its step {doing[self.number] + 1}"
        for other, ended in enumerate(self.arena.ended):
            at = f"in its step {doing[other] + 2}" if doing[other] >= 0 else "in its first step"
            if ended == FAILED:
                return f"{where}: worker {other} has left with an exception {at}; its own message says which"
            if other in departed:
                return f"{where}: the process {self.others.pids[other]} of worker {other} has ended {at}"
            if ended and not self.left and self.plan.traits.exchanges:
                return (
                    f"{where}: worker {other} has left the block after {doing[other] + 1} steps. Under plan "
                    f"{self.plan.name} all make as many steps: give every worker as many batches"
                )
        return None

    def _handle_death(self, worker: int) -> None:
        """Let no rank wait at the gate for this worker any longer."""
        self.dead_workers.add(worker)
        assert self.arena.desk is not None
        self.arena.desk.handle(Death(worker), self.desk_lock)
        for doorbell in self.arena.doorbells:
            doorbell.ring()

    def ensure_trace_space(self, worker: WorkerContext) -> None:
        self.rows.append(worker.trace.drain())

    def snapshot(self, worker: WorkerContext, updates: int, values: Callable[[], list[Tensor]]) -> None:
        """Do nothing: the user's loop evaluates the model itself."""

    def trace_rows(self) -> Columns:
        """Return this rank's part of the trace."""
        self.ensure_trace_space(self.runner)
        return np.concatenate(self.rows)

    def death_rows(self) -> Columns:
        """Return a row for each rank that died, when all others have left."""
        dead = [w for w in sorted(self.dead_workers) if self.arena.ended[w] <= 0]
        return Trace.of([Row(Kind.DEATH, w, self.arena.doing[w], start=now(), end=now()) for w in dead]).rows


def statistics(module: nn.Module) -> tuple[str, ...]:
    """Name the buffers that training changes and workers share: running statistics of normalisation layers."""
    moving = []
    for prefix, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
            moving += [f"{prefix}.{name}" if prefix else name for name, _ in part.named_buffers(recurse=False)]
    return tuple(moving)


def tables(module: nn.Module) -> tuple[str, ...]:
    """Name the parameters whose gradient will be sparse."""
    sparse = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse}
    return tuple(name for name, p in module.named_parameters() if id(p) in sparse)


def copy_values(values: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    """Copy values into tensors, rounded where the tensor holds integers."""
    for target, value in zip(into, values, strict=True):
        target.copy_(value if target.is_floating_point() else value.round())
