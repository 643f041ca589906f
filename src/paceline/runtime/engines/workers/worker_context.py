"""The context of a worker, whatever part of the model it holds: its waits, its trace, its meter, its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns as now
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.algorithms.agenda import Agenda
from paceline.plans.plan import Plan
from paceline.runtime.engines.workers.process import memory
from paceline.runtime.engines.workers.state_buffers import ResumePoint
from paceline.runtime.links.waiting import Waiter
from paceline.runtime.runs.trace import Columns, Kind, TraceRing
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.rows import numbers
from paceline.training.parameters.worker_state import WorkerState

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


# The meter of a worker: about twice a second, it records the learning rate, a gradient's norm and the worker's memory.
# A measurement takes as long as reading the gradient once. The next one comes so much later that all of them together
# take at most `SHARE` of the worker's time.

INTERVAL = 500_000_000  # nanoseconds between two measurements, at least
SHARE = 0.005  # of a worker's time, at most


class Meter:
    """Measures one worker."""

    def __init__(self, context: WorkerContext, optimizer: Optimizer) -> None:
        self.context = context
        #: The optimizer whose learning rate is recorded: that of the first shard, under a plan with servers.
        self.optimizer = optimizer
        self._next = 0
        #: An update whose learning rate has yet to be recorded; -1 if there is none.
        self._stepping = -1

    def before_step(self, gradients: Sequence[Tensor | None], update: int) -> None:
        """Measure an update, if it is time; a schedule sets its learning rate later, and the next call records it."""
        if self._stepping >= 0:
            self._record_rate(self._stepping)
            self._stepping = -1
        if self._measure(partial(norm, gradients) if gradients else None, update):
            self._stepping = update

    def after_step(self, norm: Callable[[], float] | None, update: int, rate: float | None = None) -> None:
        """Measure an update that was made, if it is time.

        `norm` gives that of its gradient, and `rate` says which learning rate another optimizer had.
        """
        if self._measure(norm, update):
            self._record_rate(update, rate)

    def _measure(self, norm: Callable[[], float] | None, update: int) -> bool:
        """Record a gradient's norm, if there is one, and the memory; return whether it was time to."""
        start = now()
        if start < self._next:
            return False
        if norm is not None:
            self._record(Kind.GRADIENT_NORM, update, norm())
        self._record(Kind.MEMORY, update, float(memory("RssAnon")))
        self._next = start + max(INTERVAL, int((now() - start) / SHARE))
        return True

    def _record_rate(self, update: int, rate: float | None = None) -> None:
        learning_rate = self.optimizer.param_groups[0].get("lr") if rate is None else rate
        if learning_rate is not None:  # some optimizers of users' have none
            self._record(Kind.LEARNING_RATE, update, float(learning_rate))

    def _record(self, kind: Kind, update: int, value: float) -> None:
        at = now()
        self.context.record(kind, update, -1, -1, -1, at, at, 0, 0, 0, value)


def norm(gradients: Sequence[Tensor | None]) -> float:
    """Return the Euclidean norm of all gradients together."""
    present = [numbers(gradient) for gradient in gradients if gradient is not None]
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(present)))) if present else 0.0


# The worker's side of checkpoints: when it writes its state into its buffer.


class StateWriter:
    """Writes one worker's state into its buffer, when a checkpoint is due."""

    def __init__(self, runner: WorkerContext) -> None:
        self.runner, self.resume_point = runner, runner.resume_point
        self.state_buffer = self.resume_point.state_buffer
        self.checkpoints, self.last = runner.shared.checkpoints, runner.agenda.updates
        #: This worker's state in the checkpoint that the run was resumed from, if there is one.
        self.found = self.state_buffer.newest if self.state_buffer is not None else None

    def in_step(self, before: int, done: int, worker_state: Callable[[], WorkerState]) -> None:
        """Write the state between two updates of a plan without a server, if a checkpoint is due there.

        This worker has made all updates below `done`; at the last call it had made those below `before`.
        """
        if self.state_buffer is None:
            return
        requested = self.checkpoints[REQUESTED]
        every = self.resume_point.checkpoint_every
        due = done // every * every if every else 0
        if due <= before:
            due = requested
        if self.resume_point.at_end and done >= self.last:
            due = self.last
        elif not before < due <= done or due >= self.last:
            return
        slot = self.state_buffer.next
        # The parent may still need the older state: another worker may not have written its part of that checkpoint.
        if slot.tag > self.checkpoints[TAKEN]:
            self.runner.waiter.until(lambda: self.checkpoints[TAKEN] >= slot.tag, lambda: "the parent", rung=False)
        slot.write(due, worker_state() | self._owed())
        self._notify()

    def server_optimizer(self, version: int, worker_state: Callable[[], WorkerState]) -> None:
        """Write the state under the shard's lock, before the commit that gives this worker a version.

        The state belongs to a checkpoint if the shard says there that the worker holds this version.
        """
        if self.state_buffer is not None:
            self.state_buffer.next.write(version, worker_state())

    def leave(self, updates: int, state: WorkerState) -> None:
        """Write a state for a checkpoint after so many updates, between two batches."""
        assert self.state_buffer is not None
        self.state_buffer.next.write(updates, state)
        self._notify()

    def finished(self, before: int, updates: int) -> None:
        """Notify the parent if a checkpoint of a plan with a server is due between these two numbers of updates."""
        every = self.resume_point.checkpoint_every
        if self.state_buffer is not None and every and before // every < updates // every:
            self._notify()

    def _notify(self) -> None:
        assert self.resume_point.notify is not None
        self.resume_point.notify()

    def _owed(self) -> WorkerState:
        encoder = self.runner.encoder
        return encoder.state() if encoder is not None else WorkerState()
