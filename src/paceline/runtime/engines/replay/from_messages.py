"""Replaying a plan whose workers hold operators: their programs, which take messages as the trace says.

In which order a worker took up its messages is all that the clock had decided. So a program that could do other work
than the recorded one takes a message that the recorded one needs; where none has arrived, it waits for the others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from paceline.algorithms.dataflow import WITHOUT_NUMBERS, Instances, Message, Work
from paceline.algorithms.dataflow.holder import Holder, Outcome
from paceline.algorithms.dataflow.worker import (
    Client,
    Compute,
    Drain,
    Effect,
    Forget,
    Program,
    Record,
    Send,
    Take,
    Update,
)
from paceline.errors import ReplayDiverged, UsageError
from paceline.plans.methods.split_layers import Dataflow
from paceline.runtime.engines.arithmetic.dataflow import DataflowArithmetic
from paceline.runtime.engines.replay.from_trace import NextUpdate, ReplayedVersion
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.trace import Columns, Kind
from paceline.training.operators.worker import Applied, OperatorWorker


@dataclass
class _Worker:
    """A worker that is replayed."""

    client: Client
    program: Program
    #: The work that is recorded and has not been done again.
    line: deque[Work]
    numbers: OperatorWorker
    #: What the program waits for the answer to; None where it has ended.
    effect: Effect | None
    #: Messages that the program has not taken.
    arrived: list[Message] = field(default_factory=list)

    def may_take(self, offered: Work | None) -> Sequence[Message | None]:
        """Return what a program takes that could do this work instead; nothing where that has not arrived."""
        due = self.line[0] if self.line else None
        if offered is not None and offered == due:
            return [None]
        return [message for message in self.arrived if message.what in WITHOUT_NUMBERS or self._needs(due, message)][:1]

    def _needs(self, due: Work | None, message: Message) -> bool:
        if due is None or message.instance != due.instance or due.instance not in self.client.machine.graphs:
            return False
        return self.client.machine.graphs[due.instance].takes(due, message)


class DataflowReplayer:
    """Replays the work of all workers. A version is that of one operator."""

    def __init__(self, setup: Setup, method: Dataflow, rows: Columns) -> None:
        self.setup, self.sums, self.last = setup, DataflowArithmetic(setup), setup.agenda.updates
        instances = self.instances = Instances(setup.agenda)
        works = rows[rows["kind"] == Kind.STAGE]
        if not len(works):
            raise UsageError("this run has no trace of its messages, whose order is not known without: no replay")
        self.workers: list[_Worker] = []
        for number in range(setup.plan.workers):
            mine = np.sort(works[works["worker"] == number], order="end", kind="stable")
            line = deque(
                Work(chr(row["version"]), instances.number(int(row["update"]), int(row["base"])), int(row["shard"]))
                for row in mine
            )
            machine = Holder(number, method.every)
            client = Client(number, setup.plan.workers, instances.passes, method.active, machine)
            program = method.program(client)
            self.workers.append(_Worker(client, program, line, self.sums.workers[number], next(program)))
        self.losses: dict[int, float] = {}
        #: Effects that were answered.
        self.answered = 0

    @property
    def done(self) -> int:
        return self.instances.updates_until(min(worker.client.passed for worker in self.workers))

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every update of every operator again; up to the pass that ends with update `until`."""
        stop = len(self.instances.passes)
        if until is not None:
            ends = [self.instances.updates_until(number) for number in range(stop + 1)]
            if until not in ends:
                raise UsageError(
                    f"until={until}: messages of several batches were under way; give the end of an epoch: "
                    f"{', '.join(map(str, ends))}"
                )
            stop = ends.index(until)
        answered = -1
        while answered != self.answered:
            answered = self.answered
            for worker in self.workers:
                for applied in self._go_on(worker, stop):
                    finite = applied.finite and math.isfinite(self.losses.get(applied.update, 0.0))
                    yield ReplayedVersion(applied.operator, applied.version, finite)
        if any(worker.client.passed < stop for worker in self.workers):
            raise ReplayDiverged("the replay cannot go on: a worker waits for a message that no other one has sent")

    def _go_on(self, worker: _Worker, stop: int) -> Iterator[Applied]:
        """Answer a worker's program until it has to wait for others, or has done so many passes; yield its updates."""
        while worker.effect is not None and (worker.client.passed < stop or not isinstance(worker.effect, Take)):
            answer: Any = None
            match worker.effect:
                case Take(offered):
                    if not (possible := worker.may_take(offered)):
                        return
                    if (answer := possible[0]) is not None:
                        worker.arrived.remove(answer)
                case Send(message):
                    self.workers[message.to].arrived.append(message)
                case Record(instance):
                    answer = worker.numbers.record(instance)
                case Compute(work, outcome):
                    self._compute(worker, work, outcome)
                case Update(step, instance):
                    yield worker.numbers.update(step, self.instances.chunk(instance).update)
                case Forget(instance):
                    worker.numbers.forget(instance)
                case Drain(steps, passed):
                    last = self.instances.updates_until(passed + 1) - 1
                    yield from (worker.numbers.update(step, last) for step in steps)
            self.answered += 1
            try:
                worker.effect = worker.program.send(answer)
            except StopIteration:
                worker.effect = None

    def _compute(self, worker: _Worker, work: Work, outcome: Outcome) -> None:
        """Do the worker's next recorded work; send its numbers."""
        worker.line.popleft()
        computed = worker.numbers.compute(work, outcome)
        if computed.loss is not None:
            self.losses[self.instances.chunk(work.instance).update] = computed.loss
        for message, tensors in computed.sends:
            self.workers[message.to].numbers.receive(message, tensors)
            self.workers[message.to].arrived.append(message)

    def next(self, shard: int, until: int) -> NextUpdate:
        work = next(worker.line[0] for worker in self.workers if worker.line)
        return NextUpdate([self.instances.chunk(work.instance)], 0, None)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()
