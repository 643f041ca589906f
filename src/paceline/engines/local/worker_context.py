"""What every worker has in the arena, whatever it holds of the model: its waits, its trace, its plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from paceline.core.agenda import Agenda
from paceline.core.rules import Memory
from paceline.engines.local.arena import Arena
from paceline.engines.local.process import memory
from paceline.engines.local.state_buffers import ResumePoint
from paceline.links import Link
from paceline.links.locks import RecordLock
from paceline.links.shared_memory_link import SharedMemoryLink, SharedVectors
from paceline.links.waiting import Waiter
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind


class Host(Protocol):
    """The process that a worker runs in: one that the local engine started, or the user's own script."""

    def cancelled(self) -> bool:
        """Whether no worker has to wait any longer."""

    def make_room(self, worker: WorkerContext) -> None:
        """Return when the worker's trace can take another row."""

    def snapshot(self, worker: WorkerContext, updates: int, values: Callable[[], list[Tensor]]) -> None:
        """So many updates are done: a moment to look at the parameters."""


class WorkerContext:
    def __init__(
        self, number: int, arena: Arena, plan: Plan, agenda: Agenda, deadline: float, resume: ResumePoint, host: Host
    ) -> None:
        self.number, self.arena, self.plan, self.agenda, self.life = number, arena, plan, agenda, resume
        self.host = host
        self.doorbells = arena.doorbells
        self.waiter = Waiter(
            number,
            self.doorbells[number],
            host.cancelled,
            deadline,
            lambda: f"in update {arena.doing[number]}",
            crowded=plan.workers * plan.threads > len(os.sched_getaffinity(0)),
        )
        self.trace = arena.traces[number]
        #: The most bytes of memory that training took, besides what is shared; 0 until `measure_memory`.
        self.peak = 0
        #: What a codec owes each parameter.
        self.carried: list[Memory] = []

    def measure_memory(self) -> None:
        """Note the memory that training took, without shared memory and libraries' files; to be called before the
        result goes to shared memory.
        """
        self.peak = memory("VmHWM") - memory("RssShmem") - memory("RssFile")

    def lock(self, number: int, what: str, shared: bool = False) -> RecordLock:
        return RecordLock(self.arena.locks, number, self.waiter, what, shared)

    def link(self, vectors: SharedVectors) -> Link:
        """This worker's end of a link to all others."""
        return SharedMemoryLink(vectors, self.number, self.doorbells, self.waiter)

    def record(self, kind: Kind, *rest: float) -> None:
        if self.trace.full:
            self.host.make_room(self)
        self.trace.write(kind, self.number, *rest)
