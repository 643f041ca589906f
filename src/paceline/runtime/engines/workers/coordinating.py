"""Answers the effects of a coordinated program: every worker runs the coordinator itself, on the same results.

Three collectives are needed: one sums the gradient, one the parts of a product, and one gathers the parameters, as
the sum of vectors that are zero outside each worker's slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns as now
from typing import Any

from torch import Tensor

from paceline.algorithms.coordinators import Dot
from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import Change, Finish, Gather, Keep, Product, Recall, Sum
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.collectives import PayloadReduction, Reduction, payloads_of
from paceline.runtime.engines.workers.methods.native_updates import NativeUpdates
from paceline.runtime.engines.workers.methods.runner import PlanRunner
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.vector_slice import VectorSlice
from paceline.training.parameters.worker_state import WorkerState

Remembered = Sequence[Sequence[str | float]]


class CoordinatingAnswers:
    """One worker's slice of every vector, and its exchanges: of whole vectors, and of one number of each worker."""

    native: NativeUpdates | None = None

    def __init__(self, runner: PlanRunner, method: Synchronous, arena: Arena) -> None:
        assert method.coordinator is not None
        assert method.collective is not None
        self.runner, self.result = runner, runner.values
        number, workers, collective = runner.number, runner.plan.workers, method.collective
        self.slice = VectorSlice(runner.learner, runner.layout, method.coordinator, number, workers)
        vectors = arena.link(arena.payloads, number, runner.waiter, changes=True)
        self.whole = PayloadReduction(
            Reduction(vectors, collective, workers), payloads_of(vectors.vectors, runner.layout)
        )
        numbers = arena.link(arena.numbers, number, runner.waiter)
        self.numbers, self.single = numbers.vectors, Reduction(numbers, collective, workers)
        #: The number of collectives so far.
        self.collectives = 0
        #: What the coordinator needs to continue from here.
        self.remembers: Remembered = ()
        if (checkpoint := runner.state_writer.found) is not None:
            runner.replica.restore(checkpoint)
            self.slice.restore(checkpoint)
            self.remembers = checkpoint.facts["remembers"]
        self.answers: dict[type, Callable[..., Any]] = {
            Recall: lambda: self.remembers,
            Sum: self.sum,
            Keep: self.keep,
            Product: self.product,
            Change: self.slice.perform,
            Gather: self.gather,
            Finish: self.finish,
        }

    def state(self) -> WorkerState:
        coordinator = WorkerState(facts={"remembers": self.remembers})
        return self.runner.replica.worker_state() | self.slice.worker_state() | coordinator

    def generated(self, losses: Sequence[float]) -> None:
        raise NotImplementedError("generated code makes no updates of a coordinator")

    def sum(self, update: int, gradient: GradientSum) -> GradientSum:
        payload = self.whole.payloads[self._turn]
        payload.write(gradient)
        self._exchange(update, self.whole.reduction)
        return payload.read(gradient.samples)

    def keep(self, gradient: GradientSum) -> float:
        self.slice.finalize(gradient)
        return gradient.mean

    def product(self, update: int, command: Dot) -> float:
        number: Tensor = self.numbers[self._turn]
        number[0] = self.slice.dot(command)
        self._exchange(update, self.single)
        return float(number)

    def gather(self, update: int) -> None:
        flat = self.whole.payloads[self._turn].flat
        self.slice.offer(flat)
        self._exchange(update, self.whole.reduction)
        self.slice.take(flat)

    def finish(self, update: int, remembers: Remembered) -> None:
        self.remembers = remembers
        self.slice.end()
        self.runner.applied(update, update, update + 1, now())  # at once: what led to it lies between collectives

    @property
    def _turn(self) -> int:
        return self.collectives % 2

    def _exchange(self, update: int, reduction: Reduction) -> None:
        start = now()
        waited = reduction.sum(self.collectives)
        self.collectives += 1
        self.runner.exchanged(update, start, waited, reduction.bytes)
