"""A worker process that holds operators, and computes whenever a message is there.

1 take every message that has arrived
2 do what the machine says next: a call of an instance, forward or backward
3 send what follows from it; a message that finds its mailbox full is kept, and the worker goes on
4 with nothing to do: wait until a message arrives, or until there is room for one
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter_ns as now

import torch
from torch import nn

from paceline.algorithms.dataflow import BEGIN, DRAINED, ENDED, Message, Work
from paceline.algorithms.dataflow.admission import Admission
from paceline.algorithms.dataflow.instances import Instances
from paceline.errors import JobError
from paceline.errors.failure import Position
from paceline.plans.methods.dataflow import Dataflow
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.assignment import Assignment
from paceline.runtime.engines.workers.process import die_with_parent
from paceline.runtime.engines.workers.snapshot_file import SnapshotFile
from paceline.runtime.engines.workers.state_buffers import StateBuffer
from paceline.runtime.engines.workers.worker import ProcessHost
from paceline.runtime.engines.workers.worker_context import WorkerContext
from paceline.runtime.links.mailbox import Mailbox
from paceline.runtime.runs.trace import Kind
from paceline.training.data.order import Order
from paceline.training.data.source import Reader, Source
from paceline.training.operators.held import Gradients
from paceline.training.operators.worker import Applied, OperatorWorker


class DataflowWorker(WorkerContext):
    """A worker process with some operators of the model; the first one also admits instances."""

    def __init__(
        self,
        assignment: Assignment,
        arena: Arena,
        source: Source,
        snapshots: SnapshotFile | None,
        state_buffer: StateBuffer | None,
        notify: Callable[[], None],
    ) -> None:
        host = ProcessHost(arena, snapshots)
        waiter = arena.waiter(assignment.number, host.cancelled, assignment.deadline, assignment.plan.threads)
        resume_point = replace(assignment.resume_point, state_buffer=state_buffer, notify=notify)
        shared = arena.of_worker(assignment.number)
        super().__init__(assignment.number, shared, waiter, assignment.plan, assignment.agenda, resume_point, host)
        method, job, number = assignment.plan.method, assignment.job, assignment.number
        assert isinstance(method, Dataflow)  # a typed view: no other plan has such a worker
        assert assignment.operators is not None
        self.arena, self.snapshots = arena, snapshots
        self.context: WorkerContext = self
        self.room = assignment.operators.room
        self.instances = Instances(assignment.agenda)
        order = Order(assignment.samples, job.seed, job.shuffle, assignment.agenda.cuts)
        reader = Reader(source, order, job.num_workers, die_with_parent)
        module: nn.Module = job.model  # type: ignore[assignment]
        self.side = OperatorWorker(number, job, module, assignment.operators, self.instances, reader, method.every)
        self.admission = Admission(self.instances.passes, method.active)
        others = [other for other in range(assignment.plan.workers) if other != number]
        self.boxes_in = {other: self._mailbox(other, number, other) for other in others}
        self.boxes_out = {other: self._mailbox(number, other, other) for other in others}
        #: By receiver: messages that wait for room.
        self.kept: dict[int, deque[list[torch.Tensor | None]]] = {other: deque() for other in others}
        self.passed = self.waited = 0

    def _mailbox(self, sender: int, receiver: int, peer: int) -> Mailbox:
        return Mailbox(self.arena.mail[0, (sender, receiver)], peer, self.arena.doorbells[peer], self.waiter)

    def position(self, update: int) -> Position:
        """Return the batch that the worker is in."""
        return Position(update)

    def train(self) -> None:
        """Compute until every pass has come to its end."""
        if not self.number:
            self._admit()
        while self.passed < len(self.instances.passes):
            self._take()  # 1
            work = self.side.machine.next()
            if work is not None:
                self._do(work)  # 2
            self._send_kept()  # 3
            if work is None and self.passed < len(self.instances.passes):
                self.waited += self.waiter.until(self._disturbed, lambda: "a message of another worker")  # 4
        while any(self.kept.values()):  # the last words of the worker that admits
            self.waiter.until(self._disturbed, lambda: "room for its messages")
            self._send_kept()
        self._write_result()

    def _disturbed(self) -> bool:
        """Whether a message has arrived, or there is room for one that was kept."""
        if any(not box.empty for box in self.boxes_in.values()):
            return True
        return any(kept and not self.boxes_out[other].full for other, kept in self.kept.items())

    def _take(self) -> None:
        """Take every message that has arrived."""
        for box in self.boxes_in.values():
            while not box.empty:
                head, *tensors = box.take()
                assert head is not None
                self._arrive(Message(self.number, *head.tolist()), tensors)

    def _arrive(self, message: Message, tensors: Gradients) -> None:
        if message.what == ENDED:
            self.admission.ended(message.instance)
            self._admit()
        elif message.what == BEGIN:
            self.side.begin(message.instance)
        elif message.what == DRAINED:
            self._drain(message.call)
        else:
            self.side.receive(message, tensors)

    def _admit(self) -> None:
        """Begin what may begin."""
        for message in self.admission.messages(self.plan.workers, lambda n: self.side.graph(n).holders):
            self._send(message, [])

    def _do(self, work: Work) -> None:
        """Do a piece of work, write its row, and send what follows from it."""
        chunk, start = self.side.chunks[work.instance], now()
        self.doing(chunk.update)
        done = self.side.do(work)
        sent = sum(self._send(message, tensors) for message, tensors in done.sends)
        row = (chunk.update, work.call, chunk.number, ord(work.what), start, now(), self.waited, 0, sent, math.nan)
        self.record(Kind.STAGE, *row)
        self.waited = 0
        if done.loss is not None:
            moment = now()
            row = (chunk.update, -1, -1, -1, moment, moment, 0, chunk.samples, 0, done.loss)
            self.record(Kind.COMPUTE, *row, weight=done.weight)
        if done.applied is not None:
            self._applied(done.applied, start)
        if done.ended:
            self._send(Message(0, ENDED, work.instance), [])

    def _send(self, message: Message, tensors: Gradients) -> int:
        """Send a message, or keep it until there is room; return its bytes."""
        if message.to == self.number:
            self._arrive(message, tensors)
            return 0
        size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        if size > self.room:
            raise JobError(
                f"a message of {size:,} bytes is more than {self.room:,}, four times the largest of the first batch; "
                "let the samples of the first batch be as large as later ones, or cut large values within an operator"
            )
        head = torch.tensor(message[1:])
        self.kept[message.to].append([head, *(None if t is None else _dense(t) for t in tensors)])
        self._send_kept()
        return size

    def _send_kept(self) -> None:
        """Send what there is room for, in order."""
        for other, queue in self.kept.items():
            while queue and not self.boxes_out[other].full:
                self.boxes_out[other].put(queue.popleft())

    def _drain(self, passed: int) -> None:
        """Make the updates of what is left of a pass, and write this worker's part of a snapshot if one is due."""
        updates, start = self.instances.updates_until(passed + 1), now()
        for applied in self.side.drain(updates - 1):
            self._applied(applied, start)
        self.passed = passed + 1
        if self.snapshots is not None and self.agenda.reaches(updates, self.snapshots.every):
            before = now()
            with self.snapshots.views(updates) as views:
                self._put(views)
            if not self.number:  # the others have written theirs, or will before the run is over
                self.record(Kind.SNAPSHOT, updates, -1, -1, -1, before, now(), 0, 0, 0, 0.0)

    def _applied(self, applied: Applied, start: int) -> None:
        row = (applied.update, applied.operator, applied.base, applied.version, start, now(), 0, 0, 0, math.nan)
        self.record(Kind.APPLY, *row)

    def _write_result(self) -> None:
        """Write what this worker holds into the shared result."""
        self.measure_memory()
        self._put(self.arena.result_views())

    def _put(self, views: Mapping[str, torch.Tensor]) -> None:
        for name, value in self.side.held.values().items():
            views[name].copy_(value)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose numbers lie without gaps, as a mailbox takes them."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()
