"""A worker that is the user's own process: his loop computes, and in `optimizer.step()` the algorithm goes on.

    the user's loop                                  the algorithm of the plan (`station`)
    ───────────────                                  ─────────────────────────────────────
    loss.backward()
    optimizer.step() ──────── gradients ───────────▶ meets the others, pushes, waits at the gate
                     ◀─── asks for the next ones ───

There is no parent: the processes were started by somebody else. Rank 0 makes the arena; whoever waits looks after the
others; each keeps its own part of the trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from time import perf_counter_ns as now

import numpy as np
from torch import Tensor, nn

from paceline.core.agenda import Agenda
from paceline.core.server.events import Death
from paceline.engines.local.arena import Arena
from paceline.engines.local.plan_runner import PlanRunner
from paceline.engines.local.state_buffers import ResumePoint
from paceline.errors import RunFailed
from paceline.gradients.learner import Learner
from paceline.gradients.payload import GradientSum
from paceline.links.membership import LocalProcesses
from paceline.links.waiting import Cancelled
from paceline.parameters.store import Optimizer
from paceline.plans.plan import Plan
from paceline.runs.trace import Columns, Kind, Row, Trace

FAILED = -1  # in `arena.ended`: left by an exception
PATIENCE = 0.05  # seconds between two looks at who is home


class LoopWorker(PlanRunner):
    def __init__(
        self, arena: Arena, plan: Plan, agenda: Agenda, learner: Learner, optimizer: Optimizer,
        followers: list[Optimizer], others: LocalProcesses, deadline: float,
    ) -> None:  # fmt: skip
        self.others, self.followers, self.home = others, followers, False
        self.trouble: str | None = None
        self.rows: list[Columns] = []
        self.dead_workers: set[int] = set()
        super().__init__(others.rank, arena, plan, agenda, learner, optimizer, deadline, ResumePoint())
        self.steps = self.algorithm()
        self.due = next(self.steps)
        self.since = now()

    def step(self) -> None:
        """The user's loop has left its gradients in the parameters: go on, until the next ones are due."""
        self._lead()
        self.arena.doing[self.number] = self.due.update
        computed = self.sender.sent(self._computed())
        self.record(
            Kind.COMPUTE, self.due.update, -1, self.due.version, -1, self.since, now(), self.waited, 1, 0, math.nan
        )
        self.waited = 0
        try:
            self.due = self.steps.send(computed)
        except Cancelled:
            raise RunFailed(self.trouble) from None
        self.since = now()

    def _lead(self) -> None:
        """Those who step in the place of the user's optimizer follow what he or his schedule has set."""
        for follower in self.followers:
            if follower is not self.optimizer:
                for own, group in zip(self.optimizer.param_groups, follower.param_groups, strict=True):
                    group.update({key: value for key, value in own.items() if key != "params"})

    def _computed(self) -> GradientSum:
        """Where gradients are added up, this worker's share of their mean."""
        share = 1.0 / self.plan.workers if self.plan.synchronous and self.plan.averaging is None else 1.0
        dtype = self.replica.parameters[0].dtype
        buffers = [b.to(dtype, copy=True) for b in self.replica.moving]
        computed = GradientSum(self.replica.take(), buffers, 0.0, 1.0, 1)
        return computed if share == 1.0 else computed.scaled(share)

    def conclude(self) -> None:
        """No more gradients will come: meet once more, where the plan says so."""
        try:
            self.steps.send(None)
        except StopIteration:
            return
        except Cancelled:
            raise RunFailed(self.trouble) from None

    def leave(self) -> None:
        """And wait until all are."""
        self._mark_left(now())
        while not self.called_off():
            if all(ended or other in self.dead_workers for other, ended in enumerate(self.arena.ended)):
                return
            time.sleep(PATIENCE)
        raise RunFailed(self.trouble)

    def fail(self) -> None:
        """The user's loop has ended with an exception; nobody need wait for it."""
        self._mark_left(FAILED)

    def _mark_left(self, when: int) -> None:
        self.home = True
        if self.plan.gate is not None:
            self._handle_death(self.number)
        self.arena.ended[self.number] = when
        for doorbell in self.doorbells:
            doorbell.ring()

    def called_off(self) -> bool:
        """Look after the other workers; whether one is missing that the plan cannot do without."""
        if self.plan.gate is not None:
            for change in self.others.changes():
                if self.arena.ended[change.rank] <= 0 and change.rank not in self.dead_workers:
                    self._handle_death(change.rank)
            return False
        self.trouble = self._what_is_wrong({other for other in self.others.gone() if self.arena.ended[other] <= 0})
        return self.trouble is not None

    def _what_is_wrong(self, gone: set[int]) -> str | None:
        doing = self.arena.doing
        where = f"worker {self.number} cannot go on after its step {doing[self.number] + 1}"
        for other, ended in enumerate(self.arena.ended):
            at = f"in its step {doing[other] + 2}" if doing[other] >= 0 else "in its first step"
            if ended == FAILED:
                return f"{where}: worker {other} has left with an exception {at}; its own message says which"
            if other in gone:
                return f"{where}: the process {self.others.pids[other]} of worker {other} has ended {at}"
            if ended and not self.home and self.plan.synchronous:
                return (
                    f"{where}: worker {other} has left the block after {doing[other] + 1} steps. Under plan "
                    f"{self.plan.name} all make as many steps: give every worker as many batches"
                )
        return None

    def _handle_death(self, worker: int) -> None:
        """Nobody waits for this worker at the gate any more."""
        self.dead_workers.add(worker)
        desk, twin = self.arena.shape.desk, self.arena.desk
        assert desk is not None
        assert twin is not None
        with self.desk_lock:
            draft = twin.begin()
            desk.handle(draft, Death(worker))
            twin.commit()
        for doorbell in self.doorbells:
            doorbell.ring()

    def make_room(self) -> None:
        self.rows.append(self.trace.drain())

    def told(self) -> Columns:
        """This worker's part of the trace."""
        self.make_room()
        return np.concatenate(self.rows)

    def death_rows(self) -> Columns:
        """When all are home: those who did not come home by themselves."""
        dead = [w for w in sorted(self.dead_workers) if self.arena.ended[w] <= 0]
        return Trace.of([Row(Kind.DEATH, w, self.arena.doing[w], start=now(), end=now()) for w in dead]).rows


def statistics(module: nn.Module) -> tuple[str, ...]:
    """The buffers that training moves and workers share: running statistics of normalisation layers."""
    moving = []
    for prefix, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
            moving += [f"{prefix}.{name}" if prefix else name for name, _ in part.named_buffers(recurse=False)]
    return tuple(moving)


def tables(module: nn.Module) -> tuple[str, ...]:
    """The parameters whose gradient will be sparse."""
    sparse = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse}
    return tuple(name for name, p in module.named_parameters() if id(p) in sparse)


def put(values: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for target, value in zip(into, values, strict=True):
        target.copy_(value if target.is_floating_point() else value.round())
