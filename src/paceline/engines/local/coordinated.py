"""A worker process under a programme: it runs the coordinator itself, and hears the same answers as all the others.

Three things take a meeting, all by the table of the plan: the gradient is added up; the parts of a product are; and the
parameters are made whole, as the sum of vectors that are zero but for each worker's slice.
"""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import TYPE_CHECKING

from paceline.core.coordinators import Coordinator
from paceline.engines.local.collectives import Table, TableClient
from paceline.parameters.vector_slice import CommandExecutor, VectorSlice
from paceline.parameters.worker_state import WorkerState, restore_memories
from paceline.runs.trace import Kind

if TYPE_CHECKING:
    from paceline.engines.local.worker import LocalWorker


def train_coordinated(worker: LocalWorker, coordinator: Coordinator) -> None:
    client = CoordinatorClient(worker, coordinator)
    client.begin()
    for update in worker.ahead:
        client.make(update)
        if worker.number == 0:
            worker.snapshot(update + 1, worker.values)
        worker.state_writer.in_step(update, update + 1, client.worker_state)
    worker.hand_in(worker.values())


class CoordinatorClient(CommandExecutor):
    """`whole` is where workers meet over the whole vector, `single` where they do over one number."""

    def __init__(self, worker: LocalWorker, coordinator: Coordinator) -> None:
        arena, meeting, workers = worker.arena, worker.plan.meeting, worker.plan.workers
        hand = VectorSlice(worker.learner, arena.shape.layout, coordinator, worker.number, workers)
        super().__init__(coordinator, [hand])
        self.worker, self.hand, self.numbers = worker, hand, arena.numbers[worker.number]
        self.whole = TableClient(worker, meeting, workers)  # type: ignore[arg-type]
        self.single = Table(worker, meeting, workers, arena.numbers)  # type: ignore[arg-type]
        self.doing = self.meetings = 0

    @property
    def turn(self) -> int:
        return self.meetings % 2

    def begin(self) -> None:
        """Where an earlier life of the run ended, if there was one."""
        if (found := self.worker.state_writer.found) is not None:
            self.worker.replica.restore(found)
            self.hand.restore(found)
            self.go_on(found.facts["remembers"])
            restore_memories(self.worker.sender.carried, found, "owed")

    def worker_state(self) -> WorkerState:
        coordinator = WorkerState(facts={"remembers": self.remembers})
        return self.worker.replica.worker_state() | self.hand.worker_state() | coordinator

    def make(self, update: int) -> None:
        self.doing = update
        self.update()
        made = now()  # at once: what led to it lies between the meetings
        self.worker.record(Kind.APPLY, update, 0, update, update + 1, made, made, 0, 0, 0, 0.0)

    def evaluate(self) -> float:
        worker, update, again = self.worker, self.doing, self.hand.kept is not None
        self.hand.rewind()
        computed = worker.compute(update, worker.agenda.mine(update, worker.number), update, again)
        payload = self.whole.payloads[self.turn]
        payload.write(computed)
        self._meet(self.whole)
        together = payload.read(computed.samples)
        self.hand.settle(together)
        return together.mean

    def total(self, parts: list[float]) -> float:
        number = self.numbers[self.turn]
        number[0] = parts[0]
        self._meet(self.single)
        return float(number)

    def share(self) -> None:
        flat = self.whole.payloads[self.turn].flat
        self.hand.offer(flat)
        self._meet(self.whole)
        self.hand.take(flat)

    def _meet(self, table: Table) -> None:
        start, update = now(), self.doing
        waited = table.sum(self.meetings)
        self.meetings += 1
        self.worker.record(Kind.MEET, update, -1, update, -1, start, now(), waited, 0, table.bytes, 0.0)
