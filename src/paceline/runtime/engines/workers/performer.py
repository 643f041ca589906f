"""Answers the effects of a program in a worker process: on its own replica, and in the group that it keeps step with.

What computes drives a *walk*: a generator that requests the gradient of some chunks, and is sent it; sent None, it
ends.

the worker's program               Performer                              its driver
────────────────────               ─────────                              ──────────
which update is next? ───────────▶ as many as possible in one call of
                                   generated code; the last of them
Gradient  ───────────────────────▶ which chunks, of which version  ─────▶ computes, or waits for the user's loop
Sum, Exchange  ──────────────────▶ the collective, over the group's link
Step  ───────────────────────────▶ the user's optimizer; a row
which update is next? ───────────▶ a snapshot, a checkpoint, if due
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns as now
from typing import Any, Protocol

from torch import Tensor

from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import EndOfTraining, Gradient, Step, Sum, all_of
from paceline.plans.plan import program_of
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.averaging import AveragingAnswers
from paceline.runtime.engines.workers.collectives import Sums
from paceline.runtime.engines.workers.coordinating import CoordinatingAnswers
from paceline.runtime.engines.workers.methods.native_updates import NativeUpdates, native_updates
from paceline.runtime.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.runtime.engines.workers.methods.server import serve
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.replicas import SteppingReplica
from paceline.training.parameters.worker_state import WorkerState

#: Effects of an update that generated code has made already.
GENERATED = (Gradient, Sum, Step)


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
            break  # paceline: ignore[PC502]  # the programs of all ranks end at the same effect
        answer = None if performer.generated and type(effect) in GENERATED else answers[type(effect)](*effect)
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
        self.answers: dict[type, Callable[..., Any]] = {Step: partial(runner.step, self.replica)}
        if sums is not None:
            self.answers[Sum] = partial(self.sum, sums)

    def sum(self, sums: Sums, update: int, gradient: GradientSum) -> GradientSum:
        start = now()
        total, waited, sent = sums.all_reduce(update, gradient)
        self.runner.exchanged(update, start, waited, sent)
        return total
