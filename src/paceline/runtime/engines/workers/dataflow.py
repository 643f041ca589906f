"""A worker process that holds operators: answers the effects of its program.

A message that finds its mailbox full waits here, and the worker goes on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns as now
from typing import Any

import torch
from torch import nn

from paceline.algorithms.dataflow import Instances, Message, Work
from paceline.algorithms.dataflow.holder import Holder, OperatorUpdate, Outcome
from paceline.algorithms.dataflow.worker import Client, Compute, Drain, Forget, Record, Send, Take, Update
from paceline.errors import JobError
from paceline.errors.failure import Position
from paceline.plans.methods.program import run
from paceline.plans.methods.split_layers import Dataflow
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.messages import Assignment
from paceline.runtime.engines.workers.state_buffers import SnapshotFile
from paceline.runtime.engines.workers.worker_context import Station, WorkerContext
from paceline.runtime.links.shared_memory import Mailbox
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Source
from paceline.training.operators.worker import Applied, OperatorWorker


class DataflowWorker(WorkerContext):
    """A worker process with some operators of the model; the first one also admits instances."""

    def __init__(
        self, assignment: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None, station: Station
    ) -> None:
        super().__init__(station, assignment.plan, assignment.agenda)
        method, job, number, workers = self.plan.method, assignment.job, assignment.number, self.plan.workers
        assert isinstance(method, Dataflow)  # a typed view: no other plan has such a worker
        assert assignment.operators is not None
        self.arena, self.snapshots, self.method = arena, snapshots, method
        self.context: WorkerContext = self
        self.room = assignment.operators.room
        self.instances = Instances(assignment.agenda)
        reader = assignment.reader(source)
        module: nn.Module = job.model  # type: ignore[assignment]
        self.side = OperatorWorker(number, job, module, assignment.operators, self.instances, reader)
        self.client = Client(number, workers, self.instances.passes, method.active, Holder(number, method.every))
        others = [other for other in range(workers) if other != number]
        self.boxes_in = {other: self._mailbox(other, number, other) for other in others}
        self.boxes_out = {other: self._mailbox(number, other, other) for other in others}
        #: By receiver: messages that wait for room.
        self.waiting: dict[int, deque[list[torch.Tensor | None]]] = {other: deque() for other in others}
        self.waited = 0
        self.answers: dict[type, Callable[..., Any]] = {
            Take: self.take,
            Send: self.send,
            Record: self.side.record,
            Compute: self.compute,
            Update: self.update,
            Forget: self.side.forget,
            Drain: self.drain,
        }

    def _mailbox(self, sender: int, receiver: int, peer: int) -> Mailbox:
        return Mailbox(self.arena.mail[0, (sender, receiver)], peer, self.arena.doorbells[peer], self.waiter)

    def position(self, update: int) -> Position:
        """Return the batch that the worker is in."""
        return Position(update)

    def train(self) -> None:
        """Run the worker's program."""
        run(self.method.program(self.client), self.answers)
        while any(self.waiting.values()):  # the last words of the worker that admits
            self.waiter.until(self._disturbed, lambda: "room for its messages")
            self._send_waiting()
        self.measure_memory()
        self._put(self.arena.result_views())

    def take(self, work: Work | None) -> Message | None:
        while True:
            for box in self.boxes_in.values():
                if not box.empty:
                    head, *tensors = box.take()
                    assert head is not None
                    message = Message(self.number, *head.tolist())
                    self.side.receive(message, tensors)
                    return message
            self._send_waiting()
            if work is not None:
                return None
            self.waited += self.waiter.until(self._disturbed, lambda: "a message of another worker")

    def _disturbed(self) -> bool:
        """Whether a message has arrived, or there is room for one that waits."""
        if any(not box.empty for box in self.boxes_in.values()):
            return True
        return any(queue and not self.boxes_out[other].full for other, queue in self.waiting.items())

    def send(self, message: Message, tensors: Sequence[torch.Tensor | None] = ()) -> int:
        """Send a message, or let it wait until there is room; return its bytes."""
        size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        if size > self.room:
            raise JobError(
                f"a message of {size:,} bytes is more than {self.room:,}, four times the largest of the first batch; "
                "let the samples of the first batch be as large as later ones, or cut large values within an operator"
            )
        head = torch.tensor(message[1:])
        self.waiting[message.to].append([head, *(None if t is None else _dense(t) for t in tensors)])
        self._send_waiting()
        return size

    def _send_waiting(self) -> None:
        """Send what there is room for, in order."""
        for other, queue in self.waiting.items():
            while queue and not self.boxes_out[other].full:
                self.boxes_out[other].put(queue.popleft())

    def compute(self, work: Work, outcome: Outcome) -> None:
        """Do a piece of work, send its numbers, and write its row."""
        chunk, start = self.side.chunks[work.instance], now()
        self.doing(chunk.update)
        computed = self.side.compute(work, outcome)
        sent = sum(self.send(message, tensors) for message, tensors in computed.sends)
        row = (chunk.update, work.call, chunk.number, ord(work.what), start, now(), self.waited, 0, sent, math.nan)
        self.record(Kind.STAGE, *row)
        self.waited = 0
        if computed.loss is not None:
            moment = now()
            row = (chunk.update, -1, -1, -1, moment, moment, 0, chunk.samples, 0, computed.loss)
            self.record(Kind.COMPUTE, *row, weight=computed.weight)

    def update(self, step: OperatorUpdate, instance: int) -> None:
        start = now()
        self._applied(self.side.update(step, self.instances.chunk(instance).update), start)

    def drain(self, steps: Sequence[OperatorUpdate], passed: int) -> None:
        """Make the updates of what is left of a pass, and write this worker's part of a snapshot if one is due."""
        updates, start = self.instances.updates_until(passed + 1), now()
        for step in steps:
            self._applied(self.side.update(step, updates - 1), start)
        if self.snapshots is not None and self.agenda.reaches(updates, self.snapshots.every):
            before = now()
            with self.snapshots.views(updates) as views:
                self._put(views)
            if not self.number:  # the others have written theirs, or will before the run is over
                self.record(Kind.SNAPSHOT, updates, -1, -1, -1, before, now(), 0, 0, 0, 0.0)

    def _applied(self, applied: Applied, start: int) -> None:
        row = (applied.update, applied.operator, applied.base, applied.version, start, now(), 0, 0, 0, math.nan)
        self.record(Kind.APPLY, *row)

    def _put(self, views: Mapping[str, torch.Tensor]) -> None:
        """Write what this worker holds."""
        for name, value in self.side.held.values().items():
            views[name].copy_(value)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose numbers lie without gaps, as a mailbox takes them."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()
