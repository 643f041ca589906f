"""The context of a worker, whatever part of the model it holds: its waits, its trace, its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from paceline.algorithms.agenda import Agenda
from paceline.plans.plan import Plan
from paceline.runtime.engines.workers.process import memory
from paceline.runtime.engines.workers.state_buffers import ResumePoint
from paceline.runtime.links.waiting import Waiter
from paceline.runtime.runs.trace import Columns, Kind, TraceRing
from paceline.training.gradients.encoder import GradientEncoder

#: The places of the integers of checkpoints: the update after which one is requested, and the newest that was taken.
REQUESTED, TAKEN = 0, 1


class Host(Protocol):
    """The process that a worker runs in: one that the local engine started, or the user's own script."""

    @property
    def snapshots_every(self) -> int:
        """The updates between two snapshots; 0 if there are none."""

    def cancelled(self) -> bool:
        """Return whether the run has ended, so that no worker has to wait any longer."""

    def ensure_trace_space(self, worker: WorkerContext) -> None:
        """Wait until the worker's trace has space for another row."""

    def snapshot(self, worker: WorkerContext, updates: int, values: Callable[[], list[Tensor]]) -> None:
        """Keep the parameters after so many updates, if an evaluation is due there."""


@dataclass(frozen=True)
class WorkerMemory:
    """The memory that a worker shares with the process that watches it."""

    #: The rows of the trace that the worker writes and the other process drains.
    trace: TraceRing
    #: One integer: the update or batch that the worker is in; -1 before the first.
    doing: memoryview
    #: One integer: the last update that the worker will make before it looks at what is requested of it.
    reach: memoryview
    #: Two integers: the update after which a checkpoint is requested, and the newest that was taken.
    checkpoints: memoryview
    #: One integer: not 0 when the run has been cancelled.
    cancelled: memoryview
    #: Where the worker leaves its parameters and buffers at the end; None if its replica is no part of the result.
    result: Tensor | None


class Station(NamedTuple):
    """What a worker stands in: the memory that it shares, how it waits, its host, and where its run begins."""

    number: int
    shared: WorkerMemory
    waiter: Waiter
    host: Host
    resume: ResumePoint


class WorkerContext:
    """One worker's plan, and what it shares with the process that watches it."""

    def __init__(self, station: Station, plan: Plan, agenda: Agenda) -> None:
        self.number, self.shared, self.waiter, self.host, self.resume_point = station
        self.plan, self.agenda, self.trace = plan, agenda, self.shared.trace
        #: The peak of the worker's own memory in bytes; 0 until `measure_memory`.
        self.peak = 0
        #: Writes gradients as messages, and keeps what these leave out; None where gradients travel as they are.
        self.encoder: GradientEncoder | None = None

    def measure_memory(self) -> None:
        """Measure the peak of memory without shared memory and the files of libraries.

        To be called before the result is written to shared memory.
        """
        self.peak = memory("VmHWM") - memory("RssShmem") - memory("RssFile")

    def doing(self, update: int) -> None:
        """Let the process that watches this worker know which update or batch it is in."""
        self.shared.doing[0] = update

    def ensure_trace_space(self) -> None:
        """Wait until the trace has space for another row."""
        if self.trace.full:
            self.host.ensure_trace_space(self)

    def record_rows(self, rows: Columns) -> None:
        """Write several rows of the trace."""
        while len(rows):
            self.ensure_trace_space()
            rows = rows[self.trace.write_rows(rows) :]
        if self.trace.crowded and self.resume_point.notify is not None:
            self.resume_point.notify()  # so that the other process drains it before there is no space

    def record(self, kind: Kind, *rest: float, weight: float = -1.0) -> None:
        """Write a row of the trace."""
        self.ensure_trace_space()
        self.trace.write(kind, self.number, *rest, weight)
