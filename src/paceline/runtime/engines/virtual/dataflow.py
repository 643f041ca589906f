"""Operators in a virtual world: the programs of all workers on one clock, which carries every message.

An instance's seconds are shared equally by its calls, a third of each on the way forward.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.dataflow import FORWARD, VALUE, Graph, Instances, Message, Work, example_graph
from paceline.algorithms.dataflow.holder import Holder, OperatorUpdate, Outcome
from paceline.algorithms.dataflow.worker import Client, Compute, Drain, Forget, Record, Send, Take, Update
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.plans.methods.split_layers import Dataflow
from paceline.plans.plan import Plan
from paceline.runtime.engines.arithmetic.dataflow import DataflowArithmetic
from paceline.runtime.engines.virtual.rows import Rows
from paceline.runtime.engines.virtual.world import Clock, ComputeTimes, World, nanoseconds
from paceline.runtime.runs.trace import Kind, Row
from paceline.training.operators.planning import Gradients
from paceline.training.operators.worker import Applied, Computed, OperatorWorker

ON = 1 / 3  # of a call's seconds, on the way forward
VALUES = 1024  # bytes of a message where there is no model to measure


class NoNumbers:
    """What `OperatorWorker` is in a simulation in time only."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.versions: dict[int, int] = {}
        self.read: dict[tuple[int, int], int] = {}

    def record(self, instance: int) -> Graph:
        return example_graph(instance, self.workers)

    def receive(self, message: Message, tensors: Gradients) -> None:
        """Do nothing: there are no numbers."""

    def compute(self, work: Work, outcome: Outcome) -> Computed:
        calls = self.record(work.instance).calls
        operator = calls[work.call].operator
        self.read.setdefault((work.instance, operator), self.versions.get(operator, 0))
        last = work.call == len(calls) - 1 and work.what == FORWARD
        return Computed([(message, []) for message in outcome.sends], math.nan if last else None, -1.0)

    def update(self, step: OperatorUpdate, update: int) -> Applied:
        base = min(self.read.pop((instance, step.operator)) for instance in step.instances)
        self.versions[step.operator] = self.versions.get(step.operator, 0) + 1
        return Applied(step.operator, update, base, self.versions[step.operator], True)

    def forget(self, instance: int) -> None:
        """Do nothing: nothing is kept."""


def run_dataflow(
    plan: Plan, method: Dataflow, agenda: Agenda, world: World, size: int, sums: DataflowArithmetic | None, rows: Rows
) -> None:
    """Run a plan whose workers hold operators; `size`, that of all parameters, is not sent."""
    _SimulatedRun(plan, method, agenda, world, sums, rows).run()


class _SimulatedRun:
    """One simulated run."""

    def __init__(
        self, plan: Plan, method: Dataflow, agenda: Agenda, world: World, sums: DataflowArithmetic | None, rows: Rows
    ) -> None:
        self.plan, self.world, self.sums, self.rows = plan, world, sums, rows
        self.clock, self.compute_times = Clock(), ComputeTimes(world, range(plan.workers))
        self.instances = Instances(agenda)
        passes, workers = self.instances.passes, plan.workers
        self.numbers: Sequence[OperatorWorker | NoNumbers] = (
            sums.workers if sums is not None else [NoNumbers(workers) for _ in range(workers)]
        )
        self.programs = [
            method.program(Client(number, workers, passes, method.active, Holder(number, method.every)))
            for number in range(workers)
        ]
        #: Messages that have arrived at each worker and that its program has not taken.
        self.arrived: list[deque[Message]] = [deque() for _ in range(workers)]
        #: Since when a worker waits for a message; None while it does not.
        self.waits: list[float | None] = [None] * workers
        self.waited = [0.0] * workers
        #: Workers at the end of each pass.
        self.drained = [0] * len(passes)

    def run(self) -> None:
        for worker in range(self.plan.workers):
            self._go_on(worker, None)
        self.clock.run()

    def _go_on(self, worker: int, answer: Any) -> None:
        """Run a worker's program to where it computes, waits for a message, or ends."""
        program, numbers = self.programs[worker], self.numbers[worker]
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                return
            answer = None
            match effect:
                case Take(work):
                    if self.arrived[worker]:
                        answer = self.arrived[worker].popleft()
                    elif work is None:
                        self.waits[worker] = self.clock.now
                        return
                case Send(message):
                    self._send(worker, message, [])
                case Record(instance):
                    answer = numbers.record(instance)
                case Compute(work, outcome):
                    self._compute(worker, work, outcome)
                    return
                case Update(step, instance):
                    self._update(worker, step, self.instances.chunk(instance).update)
                case Forget(instance):
                    numbers.forget(instance)
                case Drain(steps, passed):
                    self._drain(worker, steps, passed)

    def _send(self, sender: int, message: Message, tensors: Gradients) -> int:
        """Send a message; return its bytes."""
        size = sum(each.nbytes for each in tensors if each is not None)
        if self.sums is None and message.what >= VALUE:
            size = VALUES
        self.clock.at(self.clock.now + self.world.travel(size), self._arrive, message, tensors)
        return size

    def _arrive(self, message: Message, tensors: Gradients) -> None:
        """Let a worker have a message, which it takes at once if it waits for one."""
        worker = message.to
        self.numbers[worker].receive(message, tensors)
        since = self.waits[worker]
        if since is None:
            self.arrived[worker].append(message)
        else:
            self.waits[worker] = None
            self.waited[worker] += self.clock.now - since
            self._go_on(worker, message)

    def _compute(self, worker: int, work: Work, outcome: Outcome) -> None:
        """Compute a call; the worker goes on when its seconds are over."""
        start, numbers, chunk = self.clock.now, self.numbers[worker], self.instances.chunk(work.instance)
        calls = numbers.record(work.instance).calls
        share = (ON if work.what == FORWARD else 1 - ON) / len(calls)
        end = start + self.compute_times.draw(worker, chunk.samples) * share
        if self.world.deaths.get(worker, math.inf) < end:
            advice = "the plan cannot continue without it"
            raise WorkerDied(Failure(worker, "died, as its world says", Position(chunk.update), advice=advice))
        self.clock.at(end, self._computed, worker, work, numbers.compute(work, outcome), start)

    def _computed(self, worker: int, work: Work, computed: Computed, start: float) -> None:
        """Send what a worker has computed, write its row, and let it go on."""
        chunk = self.instances.chunk(work.instance)
        sent = sum(self._send(worker, message, tensors) for message, tensors in computed.sends)
        waited, self.waited[worker] = nanoseconds(self.waited[worker]), 0.0
        times, what = (nanoseconds(start), nanoseconds(self.clock.now)), ord(work.what)
        self.rows.add(Row(Kind.STAGE, worker, chunk.update, work.call, chunk.number, what, *times, waited, 0, sent))
        if computed.loss is not None:
            row = (chunk.update, -1, -1, -1, times[1], times[1], 0, chunk.samples, 0, computed.loss, computed.weight)
            self.rows.add(Row(Kind.COMPUTE, worker, *row))
        self._go_on(worker, None)

    def _update(self, worker: int, step: OperatorUpdate, update: int) -> None:
        start, applied = self.clock.now, self.numbers[worker].update(step, update)
        times = nanoseconds(start), nanoseconds(start + self.world.update)
        row = Row(Kind.APPLY, worker, applied.update, applied.operator, applied.base, applied.version, *times)
        self.rows.add(row)

    def _drain(self, worker: int, steps: Sequence[OperatorUpdate], passed: int) -> None:
        """Make the updates of what is left of a pass, and keep a snapshot when all workers have."""
        updates = self.instances.updates_until(passed + 1)
        for step in steps:
            self._update(worker, step, updates - 1)
        self.drained[passed] += 1
        if self.drained[passed] == self.plan.workers and self.sums is not None:
            self.sums.snapshots.keep(updates, self.clock.now)
