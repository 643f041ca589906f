"""Operators in a virtual world: every call is computed, and every message carried, on one clock.

A worker whose work is done takes up what its machine says next, among the messages that have arrived by then. An
instance's seconds are shared equally by its calls, a third of each on the way forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.dataflow import BEGIN, DRAINED, ENDED, FORWARD, VALUE, Graph, Message, Work
from paceline.algorithms.dataflow.admission import Admission
from paceline.algorithms.dataflow.example import example_graph
from paceline.algorithms.dataflow.holder import Holder
from paceline.algorithms.dataflow.instances import Instances
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.plans.methods.dataflow import Dataflow
from paceline.plans.plan import Plan
from paceline.runtime.engines.arithmetic.dataflow import DataflowArithmetic
from paceline.runtime.engines.virtual.clock import Clock
from paceline.runtime.engines.virtual.rows import Rows
from paceline.runtime.engines.virtual.world import ComputeTimes, World, nanoseconds
from paceline.runtime.runs.trace import Kind, Row
from paceline.training.operators.held import Gradients
from paceline.training.operators.worker import Applied, Completion

ON = 1 / 3  # of a call's seconds, on the way forward
VALUES = 1024  # bytes of a message where there is no model to measure


class Side(Protocol):
    """A worker that can be simulated: with real operators, or with the machine alone."""

    machine: Holder

    def graph(self, instance: int) -> Graph: ...

    def begin(self, instance: int) -> None: ...

    def receive(self, message: Message, tensors: Gradients) -> None: ...

    def do(self, work: Work) -> Completion: ...

    def drain(self, update: int) -> list[Applied]: ...


class TimedSide:
    """A worker's machine without operators: how long things take, and not how well they learn."""

    def __init__(self, number: int, workers: int, instances: Instances, every: int) -> None:
        self.workers, self.instances, self.machine = workers, instances, Holder(number, every)
        self.versions: dict[int, int] = {}
        self.read: dict[tuple[int, int], int] = {}

    def graph(self, instance: int) -> Graph:
        return example_graph(instance, self.workers)

    def begin(self, instance: int) -> None:
        self.machine.begin(instance, self.graph(instance))

    def receive(self, message: Message, tensors: Gradients) -> None:
        self.machine.arrive(message)

    def do(self, work: Work) -> Completion:
        graph = self.graph(work.instance)
        operator = graph.calls[work.call].operator
        self.read.setdefault((work.instance, operator), self.versions.get(operator, 0))
        outcome = self.machine.done(work)
        update = self.instances.chunk(work.instance).update
        applied = (
            self._step(outcome.step.operator, outcome.step.instances, update) if outcome.step is not None else None
        )
        last = work.call == len(graph.calls) - 1 and work.what == FORWARD
        return Completion(
            [(message, []) for message in outcome.sends], math.nan if last else None, -1.0, applied, outcome.ended
        )

    def drain(self, update: int) -> list[Applied]:
        return [self._step(step.operator, step.instances, update) for step in self.machine.drain()]

    def _step(self, operator: int, instances: Sequence[int], update: int) -> Applied:
        base = min(self.read.pop((instance, operator)) for instance in instances)
        self.versions[operator] = self.versions.get(operator, 0) + 1
        return Applied(operator, update, base, self.versions[operator], True)


def run_dataflow(
    plan: Plan, method: Dataflow, agenda: Agenda, world: World, size: int, sums: DataflowArithmetic | None, rows: Rows
) -> None:
    """Run a plan whose workers hold operators; `size`, that of all parameters, is not sent."""
    _Run(plan, method, agenda, world, sums, rows).run()


class _Run:
    """One simulated run. Worker 0 admits instances."""

    def __init__(
        self, plan: Plan, method: Dataflow, agenda: Agenda, world: World, sums: DataflowArithmetic | None, rows: Rows
    ) -> None:
        self.plan, self.world, self.sums, self.rows = plan, world, sums, rows
        self.clock, self.compute_times = Clock(), ComputeTimes(world, range(plan.workers))
        self.instances = Instances(agenda)
        self.admission = Admission(self.instances.passes, method.active)
        alone = [TimedSide(number, plan.workers, self.instances, method.every) for number in range(plan.workers)]
        self.sides: Sequence[Side] = sums.workers if sums is not None else alone
        self.busy = [False] * plan.workers
        self.idle_since = [0.0] * plan.workers
        #: Workers that were told of the end of each pass.
        self.told = [0] * len(self.instances.passes)

    def run(self) -> None:
        self._admit()
        self.clock.run()

    def _admit(self) -> None:
        """Begin what may begin."""
        sides = self.sides
        for message in self.admission.messages(self.plan.workers, lambda n: sides[0].graph(n).holders):
            self._send(0, message, [])

    def _send(self, sender: int, message: Message, tensors: Gradients) -> int:
        """Send a message; return its bytes."""
        size = sum(each.nbytes for each in tensors if each is not None)
        if self.sums is None and message.what >= VALUE:
            size = VALUES
        delay = self.world.travel(size) if message.to != sender else 0.0
        self.clock.at(self.clock.now + delay, self._arrive, message, tensors)
        return size if message.to != sender else 0

    def _arrive(self, message: Message, tensors: Gradients) -> None:
        worker = message.to
        if message.what == ENDED:
            self.admission.ended(message.instance)
            self._admit()
        elif message.what == BEGIN:
            self.sides[worker].begin(message.instance)
        elif message.what == DRAINED:
            self._drain(worker, message.call)
        else:
            self.sides[worker].receive(message, tensors)
        if not self.busy[worker]:
            self._next(worker)

    def _drain(self, worker: int, passed: int) -> None:
        """Make the updates of what is left of a pass, and keep a snapshot when all have."""
        updates = self.instances.updates_until(passed + 1)
        start = self.clock.now
        for applied in self.sides[worker].drain(updates - 1):
            self._applied(worker, applied, start)
        self.told[passed] += 1
        if self.told[passed] == self.plan.workers and self.sums is not None:
            self.sums.snapshots.keep(updates, start)

    def _next(self, worker: int) -> None:
        """Let a worker take up its next piece of work, if there is any."""
        side, start = self.sides[worker], self.clock.now
        work = side.machine.next()
        if work is None:
            self.idle_since[worker] = start
            return
        self.busy[worker] = True
        chunk = self.instances.chunk(work.instance)
        graph = side.machine.graphs[work.instance]
        share = (ON if work.what == FORWARD else 1 - ON) / len(graph.calls)
        end = start + self.compute_times.draw(worker, chunk.samples) * share
        if self.world.deaths.get(worker, math.inf) < end:
            advice = "the plan cannot continue without it"
            raise WorkerDied(Failure(worker, "died, as its world says", Position(chunk.update), advice=advice))
        done = side.do(work)
        waited = nanoseconds(start - self.idle_since[worker])
        self.clock.at(end, self._ended, worker, work, done, start, waited)

    def _ended(self, worker: int, work: Work, done: Completion, start: float, waited: int) -> None:
        """Record what a worker has done, send what follows from it, and let it go on."""
        chunk, end = self.instances.chunk(work.instance), self.clock.now
        sent = sum(self._send(worker, message, tensors) for message, tensors in done.sends)
        times = nanoseconds(start), nanoseconds(end)
        what = ord(work.what)
        self.rows.add(Row(Kind.STAGE, worker, chunk.update, work.call, chunk.number, what, *times, waited, 0, sent))
        if done.loss is not None:
            row = (chunk.update, -1, -1, -1, times[1], times[1], 0, chunk.samples, 0, done.loss, done.weight)
            self.rows.add(Row(Kind.COMPUTE, worker, *row))
        if done.applied is not None:
            self._applied(worker, done.applied, end)
        if done.ended:
            self._send(worker, Message(0, ENDED, work.instance), [])
        self.busy[worker], self.idle_since[worker] = False, end
        self._next(worker)

    def _applied(self, worker: int, applied: Applied, start: float) -> None:
        times = nanoseconds(start), nanoseconds(start + self.world.update)
        row = Row(Kind.APPLY, worker, applied.update, applied.operator, applied.base, applied.version, *times)
        self.rows.add(row)
