"""Replayers: each makes the versions of a recorded run again, one after another.

A synchronous plan needs only its table. A plan with a server needs the trace (`engines.replay.from_trace`).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from paceline.algorithms.cluster.shares import Epoch, Epochs
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
from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import Gradient, all_of, effects
from paceline.plans.methods.split_layers import Dataflow
from paceline.plans.plan import Plan, program_of
from paceline.runtime.engines.arithmetic.dataflow import DataflowArithmetic
from paceline.runtime.engines.arithmetic.pipeline import StagedPipeline
from paceline.runtime.engines.arithmetic.servers import ServerArithmetic
from paceline.runtime.engines.arithmetic.splits import SplitArithmetic
from paceline.runtime.engines.arithmetic.synchronous import SynchronousArithmetic, Team, synchronous
from paceline.runtime.engines.replay.from_trace import NextUpdate, ReplayedVersion, ServerReplayer
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.trace import Columns, Kind, Trace
from paceline.training.gradients.fused_replica import by_one
from paceline.training.gradients.payload import GradientSum
from paceline.training.operators.worker import Applied, OperatorWorker


class Replayer(Protocol):
    """Makes the versions of a recorded run again."""

    #: Updates of the whole run.
    last: int

    @property
    def done(self) -> int:
        """The updates that have been made again so far."""

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every version up to `until`; None for all."""

    def next(self, shard: int, until: int) -> NextUpdate:
        """Describe the update that would come after version `until` of this shard."""

    def values(self) -> list[torch.Tensor]:
        """Return the trainable parameters, then the moving buffers."""


class SynchronousReplayer:
    """Replays the program of a synchronous plan, or of the first worker of those that exchange nothing.

    It is the program's `Worker`. On a cluster some workers may have died; the numbers are of those between which each
    update was made.
    """

    rank = first = 0

    def __init__(self, setup: Setup, method: Synchronous, numbers: SynchronousArithmetic | SplitArithmetic) -> None:
        self.setup, self.method, self.numbers = setup, method, numbers
        self.workers, alone = setup.plan.workers, method.collective is None
        self._updates = range(0, setup.agenda.updates, self.workers if alone else 1)
        self.done, self.last = 0, len(self._updates)
        self._until: int | None = None
        #: Versions that were made and not yet yielded, and whether everything that led to the next one was finite.
        self._made, self._finite = list[ReplayedVersion](), True

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        self._until = until
        for _ in effects(self.method.program(self), self.numbers.answers | {Gradient: self._gradient}):
            yield from self._made
            self._made.clear()
        yield from self._made

    def updates(self, *, dealt: bool = False, until: Callable[[range], range] = all_of) -> Iterator[int]:
        for update in self._updates[: self._until]:
            self._finite = True
            yield update
            self.done += 1
            self._made.append(ReplayedVersion(0, self.done, self._finite and self.numbers.finite()))

    def _gradient(self, update: int, version: int, filled: bool, again: bool) -> list[GradientSum]:
        gradients = self.numbers.gradient(update, version, filled, again)
        # A line search tries steps that are too long; what it finds there is no fault.
        self._finite = self._finite and (again or all(gradient.finite() for gradient in gradients))
        return gradients

    def next(self, shard: int, until: int) -> NextUpdate:
        update = self._updates[until]
        gradients = self.numbers.gradient(update, until, whole=self.method.collective is None)
        bad = next((n for n, gradient in enumerate(gradients) if not gradient.finite()), 0)
        weight = sum(gradient.weight for gradient in gradients)
        loss = sum(gradient.loss for gradient in gradients) / weight if weight else math.nan
        return NextUpdate(self.setup.agenda.filled(update), bad, loss)

    def values(self) -> list[torch.Tensor]:
        return self.numbers.values()


class TeamReplayer:
    """Replays what ranks of MPI trained, update by update: a whole pass in one call has the same bits."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.team = setup, Team(setup, by_one)
        self.done, self.last = 0, setup.agenda.updates

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        for update in range(self.last)[:until]:
            loss = self.team.train(update, update + 1)
            self.done += 1
            yield ReplayedVersion(0, self.done, math.isfinite(loss) and self.team.finite())

    def next(self, shard: int, until: int) -> NextUpdate:
        return NextUpdate(self.setup.agenda.filled(until), 0, self.team.loss(until))

    def values(self) -> list[torch.Tensor]:
        return self.team.values()


class PipelineReplayer:
    """Replays plans whose workers hold stages, by their table."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.sums = setup, StagedPipeline(setup)
        self.done, self.last = 0, setup.agenda.updates

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make versions of the model; each is complete when the last of its stages is."""
        finite: dict[int, list[bool]] = defaultdict(list)
        for replayed in self.sums.replay(until):
            finite[replayed.update].append(self.sums.finite(replayed))
            if len(finite[replayed.update]) == len(self.sums.stage_to_worker):
                self.done = replayed.update + 1
                yield ReplayedVersion(0, self.done, all(finite.pop(replayed.update)))

    def next(self, shard: int, until: int) -> NextUpdate:
        pipeline, chunks = StagedPipeline(self.setup), self.setup.agenda.filled(until)
        last = (until, len(pipeline.stage_to_worker) - 1)
        (sums,) = [step.sums for step in pipeline.replay(until + 1) if (step.update, step.stage) == last]
        return NextUpdate(chunks, pipeline.stage_to_worker[-1], sums.loss / sums.weight if sums.weight else math.nan)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()


class ResumedReplayer:
    """Replays a resumed run under a plan with a server, part after part, each with its own workers."""

    def __init__(self, setups: list[Setup], parts: list[Columns], apart: list[bool]) -> None:
        self._lives = list(zip(setups, parts, apart, strict=True))
        self.now = ServerReplayer(*self._lives[0])
        self.last = setups[0].agenda.leases // setups[0].agenda.shares

    @property
    def done(self) -> int:
        return self.now.done

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        yield from self.now.replay(until)
        for life in self._lives[1:]:
            following, before = ServerReplayer(*life), self.now
            if before.versions != following.versions:
                return  # `until` lies in the part before
            assert isinstance(before.sums, ServerArithmetic)
            assert isinstance(following.sums, ServerArithmetic)
            following.sums.resume(before.sums)
            self.now = following
            yield from following.replay(until)

    def next(self, shard: int, until: int) -> NextUpdate:
        return self.now.next(shard, until)

    def values(self) -> list[torch.Tensor]:
        return self.now.values()


def epochs_of(trace: Trace, plan: Plan) -> Epochs:
    """Return the groups that the trace has recorded; a canonical sum has the bits of any."""
    if plan.canonical:
        return Epochs(plan.workers, collective=program_of(plan).collective)
    _refuse_replaced(trace, plan)
    rows = np.sort(trace.of_kind(Kind.REGROUP), order=("start", "worker"))
    epochs: list[Epoch] = []
    for start in np.unique(rows["start"]):
        group = rows[rows["start"] == start]
        progress = dict(zip(group["worker"].tolist(), group["base"].tolist(), strict=True))
        epochs.append(Epoch(int(group["update"][0]), progress))
    return Epochs(plan.workers, epochs)


def _refuse_replaced(trace: Trace, plan: Plan) -> None:
    """Raise if a worker of an earlier life had died, and began the next one with another one's replica."""
    resumed = np.flatnonzero(trace.rows["kind"] == Kind.RESUME)
    if plan.traits.agrees or not len(resumed):
        return
    earlier = trace.rows[: resumed[-1]]
    groups = earlier[earlier["kind"] == Kind.REGROUP]
    if len(groups) and (np.unique(groups["start"], return_counts=True)[1] < plan.workers).any():
        raise UsageError(
            f"a worker had died when this run of plan {plan.name} was resumed, and took another one's replica: "
            "the run cannot be replayed"
        )


class RunPart(NamedTuple):
    """A part of a run, between two resumptions."""

    plan: Plan
    #: Whether servers were processes of their own, as on a cluster.
    apart: bool = False


def make_replayer(setup: Setup, trace: Trace, lives: list[RunPart]) -> Replayer:
    """Make the replayer of a run.

    Where workers keep step, a run that was resumed has the bits of one that was not.
    """
    setup = setup.anew()  # an earlier pass may have called the job's functions
    if setup.engine == "mpi":
        return TeamReplayer(setup)
    if setup.pipeline is not None and setup.pipeline.spread.server is None:
        return PipelineReplayer(setup)
    plan = setup.plan
    if setup.operators is not None:
        return DataflowReplayer(setup, plan.method, trace.rows)  # type: ignore[arg-type]
    if setup.split is not None:
        return SynchronousReplayer(setup, program_of(plan), SplitArithmetic(setup, plan.method))  # type: ignore[arg-type]
    if plan.method.server is None:
        method = program_of(plan)
        return SynchronousReplayer(setup, method, synchronous(setup, method, epochs_of(trace, plan)))
    if len(lives) == 1:
        return ServerReplayer(setup, trace.rows, lives[0].apart)
    setups = [replace(setup, plan=life.plan.fitted(len(setup.layout.shards))) for life in lives]
    return ResumedReplayer(setups, trace.lives(), [life.apart for life in lives])


# Replaying a plan whose workers hold operators: their programs, which take messages as the trace says.
#
# In which order a worker took up its messages is all that the clock had decided. So a program that could do other work
# than the recorded one takes a message that the recorded one needs; where none has arrived, it waits for the others.


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
