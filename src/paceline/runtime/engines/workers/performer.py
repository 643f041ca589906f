"""Answers the effects of a program in a worker process: on its own replica, in the group, in generated code.

What computes drives a *walk*: a generator that requests the gradient of some chunks, and is sent it; sent None, it
ends.

the worker's program               Performer                              its driver
────────────────────               ─────────                              ──────────
which update is next? ───────────▶ as many as possible in one call of
                                   generated code; the last of them
Gradient  ───────────────────────▶ which chunks, of which version  ─────▶ computes, or waits for the user's loop
Sum, Exchange  ──────────────────▶ the collective, over the group's link
OptimizerStep  ──────────────────▶ the user's optimizer; a row
which update is next? ───────────▶ a snapshot, a checkpoint, if due
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns as now
from typing import Any, Protocol

from torch import Tensor

from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.algorithms.coordinators import Dot
from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import (
    BeginExchange,
    Change,
    EndExchange,
    EndOfTraining,
    Exchange,
    Finish,
    Gather,
    Gradient,
    Keep,
    Offer,
    OptimizerStep,
    Product,
    Recall,
    Sum,
    all_of,
)
from paceline.plans.plan import program_of
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.collectives import (
    Means,
    NeighbourMixing,
    PayloadReduction,
    Reduction,
    Sums,
    payloads_of,
)
from paceline.runtime.engines.workers.methods.native_updates import NativeUpdates, native_updates
from paceline.runtime.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.runtime.engines.workers.methods.server import serve
from paceline.training.gradients.learner import VectorSlice
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.replicas import AveragingReplica, SteppingReplica
from paceline.training.parameters.worker_state import WorkerState, state_of_tensors

#: Effects of an update that generated code has made already; exchanges only if they are part of its updates.
GENERATED, EXCHANGED = (Gradient, Sum, OptimizerStep), (Offer, Exchange)


def walk_of(runner: PlanRunner, arena: Arena) -> Walk | None:
    """Start the walk of the runner's method on one machine; None if the method decides itself when to compute."""
    plan = runner.plan
    if plan.method.server is not None:
        return serve(runner, plan.method.server, arena)
    return perform(runner, program_of(plan), arena) if plan.traits.traced else None


def follow(walk: Walk, compute: Callable[[GradientRequest], GradientSum]) -> None:
    """Compute the gradients that a walk requests, until it ends.

    Neither this function nor the walk holds a gradient while the next one is computed.
    """
    request = next(walk, None)
    while request is not None:
        try:
            request = walk.send(compute(request))
        except StopIteration:
            break


def perform(runner: PlanRunner, method: Synchronous, arena: Arena) -> Walk:
    """Run the program of a method for this worker; requests the gradients, which its driver computes."""
    performer = Performer(runner, answers_of(runner, method, arena))
    program, answers, answer = method.program(performer), performer.answers, None
    while True:
        try:
            effect = program.send(answer)
            if isinstance(effect, Gradient) and not performer.generated:
                answer = yield performer.request(effect)
                if answer is not None:
                    continue
                effect = program.throw(EndOfTraining())
        except (StopIteration, EndOfTraining):
            break  # the programs of all ranks end at the same effect
        answer = None if performer.generated and type(effect) in performer.inside else answers[type(effect)](*effect)
    runner.write_result(performer.own.result())


def answers_of(runner: PlanRunner, method: Synchronous, arena: Arena) -> Answers:
    """Return what answers the effects of a method besides gradients."""
    if method.coordinator is not None:
        return CoordinatingAnswers(runner, method, arena)
    return SummingAnswers(runner, method) if method.averaging is None else AveragingAnswers(runner, method)


class Answers(Protocol):
    """What answers some of a program's effects, on this worker's parameters."""

    answers: dict[type, Callable[..., Any]]
    #: Makes several updates in one call of generated code; None where each needs the program between two gradients.
    native: NativeUpdates | None

    def state(self) -> WorkerState:
        """Return what a checkpoint keeps of this worker between two updates."""

    def result(self) -> list[Tensor]:
        """Return the parameters as the training has them now, then the moving buffers."""

    def generated(self, losses: Sequence[float]) -> None:
        """Note updates of these losses that generated code has made."""


class Performer:
    """The `Worker` of a program, with the answers to all its effects but the gradients."""

    def __init__(self, runner: PlanRunner, answers: Answers) -> None:
        self.runner, self.own, self.answers = runner, answers, answers.answers
        self.rank, self.workers = runner.number, runner.plan.workers
        self.first, self.last = runner.resume_point.updates, runner.agenda.updates
        #: Whether generated code has made the update that the program is at: gradient, sum and step.
        self.generated = False
        self.inside = (*GENERATED, *EXCHANGED) if answers.native and answers.native.collective else GENERATED

    def updates(self, *, dealt: bool = False, until: Callable[[range], range] = all_of) -> Iterator[int]:
        """Yield the updates that are yet to be made; see `Worker`."""
        runner, native = self.runner, self.own.native
        ahead = runner.updates_ahead(self.rank, self.workers) if dealt else runner.updates_ahead()
        while ahead:
            completed = native.make(until(ahead), ahead[0] // ahead.step) if native else ahead[:0]
            self.generated = bool(completed)
            if native and completed:
                self.own.generated(native.means)
            completed = completed or ahead[:1]
            yield completed[-1]
            if runner.group.leads:
                runner.snapshot(completed[-1] + 1, self.own.result)
            runner.state_writer.in_step(completed[0], completed[-1] + ahead.step, self.own.state)
            ahead = ahead[len(completed) :]

    def request(self, gradient: Gradient) -> GradientRequest:
        """Return which chunks a gradient is of, now that it is computed."""
        update, version, filled, again = gradient
        chunks = self.runner.agenda.whole(update) if filled else self.runner.group.chunks(update)
        return GradientRequest(update, chunks, version, again)


class SummingAnswers:
    """Gradients that are summed, or used as they are, and steps of the user's optimizer."""

    def __init__(self, runner: PlanRunner, method: Synchronous) -> None:
        self.runner = runner
        self.replica = SteppingReplica(runner.learner, runner.local_store())
        self.state = runner.resume(self.replica.store)
        self.result, self.generated = self.replica.result, self.replica.note_losses
        sums = None if method.collective is None else runner.group.sums(method.collective, runner.encoder)
        # Generated code computes a whole batch in one piece.
        at_once = sums is not None or (runner.agenda.parts == 1 and not runner.plan.canonical)
        self.native = native_updates(runner, self.replica.store, sums) if at_once else None
        self.answers: dict[type, Callable[..., Any]] = {OptimizerStep: partial(runner.step, self.replica)}
        if sums is not None:
            self.answers[Sum] = partial(self.sum, sums)

    def sum(self, sums: Sums, update: int, gradient: GradientSum) -> GradientSum:
        start = now()
        total, waited, sent = sums.all_reduce(update, gradient)
        self.runner.exchanged(update, start, waited, sent)
        return total


# Answers the effects of a coordinated program: every worker runs the coordinator itself, on the same results.
#
# Three collectives are needed: one sums the gradient, one the parts of a product, and one gathers the parameters, as
# the sum of vectors that are zero outside each worker's slice.

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


# The exchanges of a worker's replica with the others', some of which go on while the worker computes.
#
# worker                                       thread
# ──────                                       ──────
# after update u: what the replica contributes
# begins an exchange ───────────────────────▶  the collective, made again if the group changes
# updates u + 1 ... u + overlap
# waits for the end  ◀───────────────────────  the mean
# applies it after update u + overlap
#
# When it is applied follows from the plan alone, so a run has the same bits however long exchanges take. A worker has
# at most one under way. A checkpoint waits for it and keeps its mean, so a resumed run exchanges nothing twice.

ARRIVED, BUFFERS, SENT = "arrived", "arrived_buffers", "arrived_bytes"  # in checkpoints


class _Flight:
    """An exchange under way, in a thread of its own."""

    def __init__(self, means: Means, number: int, computed: GradientSum) -> None:
        self._means, self._number, self._computed = means, number, computed
        self._found: tuple[GradientSum, int] | None = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-exchange", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            mean, _, sent = self._means.mean(self._number, self._computed)
            self._found = mean, sent
        except BaseException as error:  # the worker raises it where it waits
            self._failed = error

    def end(self) -> tuple[GradientSum, int]:
        """Wait for the end; return (the mean, bytes sent)."""
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        assert self._found is not None
        return self._found


class AveragingAnswers:
    """Steps of a replica, and its exchanges with those of other workers."""

    def __init__(self, runner: PlanRunner, method: Synchronous) -> None:
        self.runner, rule, collective = runner, method.averaging, method.collective
        assert rule is not None
        assert collective is not None
        store = runner.local_store(rule)
        self.replica = AveragingReplica(runner.learner, store, rule, runner.fragments)
        self.result, self._state_of_replica = self.replica.result, runner.resume(store)
        self.means: Means = (
            runner.group.mixing(collective)
            if isinstance(collective, Neighbours)
            else runner.group.sums(collective, runner.encoder)
        )
        # What is mixed before the step is exchanged in the call that makes both, so every update has to exchange.
        self.native = None
        if not rule.mixes_first or rule.every == 1:
            self.native = native_updates(runner, store, self.means if rule.mixes_first else None)
        self.answers: dict[type, Callable[..., Any]] = {
            OptimizerStep: partial(runner.step, self.replica),
            Offer: self.offer,
            Exchange: self.exchange,
            BeginExchange: self.begin,
            EndExchange: self.end,
        }
        self._flight: _Flight | None = None
        #: The mean of the exchange under way and the bytes that were sent for it, once it has ended.
        self._arrived: tuple[GradientSum, int] | None = None
        checkpoint = runner.state_writer.found
        if checkpoint is not None and SENT in checkpoint.facts:
            mean = GradientSum(list(checkpoint.many(ARRIVED)), checkpoint.many(BUFFERS), 0.0, 1.0, 1)
            self._arrived = mean, checkpoint.facts[SENT]

    def generated(self, losses: Sequence[float]) -> None:
        """Do nothing: a replica's own losses say little of the model that all replicas make together."""

    def offer(self, exchange: int) -> None:
        # What a worker contributes is known before its gradient, unless computing that changes batch-norm's
        # statistics. On a cluster the group may change in between.
        if isinstance(self.means, NeighbourMixing) and not self.runner.replica.moving:
            self.means.offer(exchange, self._contribution(exchange))

    def exchange(self, exchange: int, update: int) -> None:
        start = now()
        mean, waited, sent = self.means.mean(exchange, self._contribution(exchange))
        self.replica.apply_mean(exchange, mean)
        self.runner.exchanged(update, start, waited, sent)

    def begin(self, exchange: int, update: int) -> None:
        self._flight = _Flight(self.means, exchange, self._contribution(exchange))

    def end(self, exchange: int, update: int) -> None:
        start = now()
        mean, sent = self._wait()
        waited = now() - start
        self.replica.apply_mean(exchange, mean, late=True)
        self.runner.exchanged(update, start, waited, sent)
        self._flight = self._arrived = None

    def state(self) -> WorkerState:
        """Return what a checkpoint keeps: the replica and, when it has ended, the exchange under way."""
        state = self._state_of_replica()
        if self._flight is None and self._arrived is None:
            return state
        mean, sent = self._wait()
        gradients = [gradient for gradient in mean.gradients if gradient is not None]
        tensors = state_of_tensors(ARRIVED, gradients) | state_of_tensors(BUFFERS, mean.buffers)
        return state | tensors | WorkerState(facts={SENT: sent})

    def _contribution(self, exchange: int) -> GradientSum:
        return self.replica.contribution(exchange, self.runner.number)

    def _wait(self) -> tuple[GradientSum, int]:
        if self._arrived is None:
            assert self._flight is not None
            self._arrived = self._flight.end()
        return self._arrived
