"""Coordinated: every worker runs the coordinator itself, on the same results as the others.

Three collectives are needed: one sums the gradient, one the parts of a product, and one gathers the parameters, as
the sum of vectors that are zero outside each worker's slice.
"""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import Protocol

from paceline.core.agenda import Chunk
from paceline.engines.workers.arena import Arena
from paceline.engines.workers.collectives import PayloadReduction, Reduction, payloads_of
from paceline.engines.workers.methods.runner import PlanRunner
from paceline.gradients.payload import GradientSum
from paceline.parameters.vector_slice import CommandExecutor, VectorSlice
from paceline.parameters.worker_state import WorkerState
from paceline.plans.methods.coordinated import Coordinated


class Compute(Protocol):
    """Computes the encoded gradient of some chunks; `again` where an update evaluates them once more."""

    def __call__(self, update: int, chunks: list[Chunk], version: int, again: bool = False) -> GradientSum: ...


def train_coordinated(runner: PlanRunner, method: Coordinated, arena: Arena, compute: Compute) -> None:
    """Train under a coordinator, from the first update of this part of the run to the last."""
    client = CoordinatorClient(runner, method, arena, compute)
    client.resume()
    for update in runner.updates_ahead():
        client.make(update)
        if runner.group.leads:
            runner.snapshot(update + 1, runner.values)
        runner.state_writer.in_step(update, update + 1, client.worker_state)
    runner.write_result(runner.values())


class CoordinatorClient:
    """One worker's exchanges: `whole` sums whole vectors, `single` one number of each worker."""

    def __init__(self, runner: PlanRunner, method: Coordinated, arena: Arena, compute: Compute) -> None:
        self.runner, self.compute = runner, compute
        number, workers, collective = runner.number, runner.plan.workers, method.collective
        self.slice = VectorSlice(runner.learner, runner.layout, method.coordinator, number, workers)
        self.executor = CommandExecutor(method.coordinator, [self.slice], self)
        link = arena.link(arena.payloads, number, runner.waiter, changes=True)
        self.whole = PayloadReduction(Reduction(link, collective, workers), payloads_of(link.vectors, runner.layout))
        numbers = arena.link(arena.numbers, number, runner.waiter)
        self.numbers, self.single = numbers.vectors, Reduction(numbers, collective, workers)
        #: The update that is being made, and the number of collectives so far.
        self.doing = self.collectives = 0

    @property
    def turn(self) -> int:
        return self.collectives % 2

    def resume(self) -> None:
        """Restore the state in which an earlier part of the run ended, if there was one."""
        if (found := self.runner.state_writer.found) is not None:
            self.runner.replica.restore(found)
            self.slice.restore(found)
            self.executor.resume(found.facts["remembers"])

    def worker_state(self) -> WorkerState:
        coordinator = WorkerState(facts={"remembers": self.executor.remembers})
        return self.runner.replica.worker_state() | self.slice.worker_state() | coordinator

    def make(self, update: int) -> None:
        """Make one update as the coordinator commands."""
        self.doing = update
        self.executor.update()
        self.runner.applied(update, update, update + 1, now())  # at once: what led to it lies between collectives

    def evaluate(self) -> float:
        update, again = self.doing, self.slice.kept is not None
        self.slice.rewind()
        chunks = self.runner.group.chunks(update)
        computed = self.compute(update, chunks, update, again)
        payload = self.whole.payloads[self.turn]
        payload.write(computed)
        self._exchange(self.whole.reduction)
        together = payload.read(computed.samples)
        self.slice.settle(together)
        return together.mean

    def total(self, parts: list[float]) -> float:
        number = self.numbers[self.turn]
        number[0] = parts[0]
        self._exchange(self.single)
        return float(number)

    def share(self) -> None:
        flat = self.whole.payloads[self.turn].flat
        self.slice.offer(flat)
        self._exchange(self.whole.reduction)
        self.slice.take(flat)

    def _exchange(self, reduction: Reduction) -> None:
        start = now()
        waited = reduction.sum(self.collectives)
        self.collectives += 1
        self.runner.exchanged(self.doing, start, waited, reduction.bytes)
