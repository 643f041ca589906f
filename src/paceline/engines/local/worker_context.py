"""The context of a worker in the arena, whatever part of the model it holds: its waits, its trace, its plan."""

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
        """Return whether the run has ended, so that no worker has to wait any longer."""

    def ensure_trace_space(self, worker: WorkerContext) -> None:
        """Wait until the worker's trace has space for another row."""

    def snapshot(self, worker: WorkerContext, updates: int, values: Callable[[], list[Tensor]]) -> None:
        """Keep the parameters after so many updates, if an evaluation is due there."""


class WorkerContext:
    """One worker's access to the arena that it shares with the others."""

    def __init__(
        self, number: int, arena: Arena, plan: Plan, agenda: Agenda, deadline: float, resume: ResumePoint, host: Host
    ) -> None:
        self.number, self.arena, self.plan, self.agenda, self.resume_point = number, arena, plan, agenda, resume
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
        #: The peak of the worker's own memory in bytes; 0 until `measure_memory`.
        self.peak = 0
        #: The error that a codec carries to the next gradient, for each parameter.
        self.carried: list[Memory] = []

    def measure_memory(self) -> None:
        """Measure the peak of memory without shared memory and the files of libraries.

        To be called before the result is written to shared memory.
        """
        self.peak = memory("VmHWM") - memory("RssShmem") - memory("RssFile")

    def lock(self, number: int, what: str, shared: bool = False) -> RecordLock:
        return RecordLock(self.arena.locks, number, self.waiter, what, shared)

    def link(self, vectors: SharedVectors) -> Link:
        """Return this worker's end of a link to all others."""
        return SharedMemoryLink(vectors, self.number, self.doorbells, self.waiter)

    def record(self, kind: Kind, *rest: float) -> None:
        """Write a row of the trace."""
        if self.trace.full:
            self.host.ensure_trace_space(self)
        self.trace.write(kind, self.number, *rest)
