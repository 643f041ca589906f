"""Workers that run one program in step with one another, on a virtual clock: with numbers, or in time only.

The program stands for all of them. Each effect moves the clock of every worker by what the world says, and writes a
row of each; where there are numbers, gradients and sums are those of all workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.codecs.catalogue import exchanged
from paceline.algorithms.coordinators import Dot
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import (
    ALL_EFFECTS,
    BeginExchange,
    EndExchange,
    Exchange,
    Finish,
    Gather,
    Gradient,
    Keep,
    OptimizerStep,
    Product,
    Recall,
    Sum,
    all_of,
    run,
)
from paceline.plans.plan import Plan, program_of
from paceline.runtime.engines.arithmetic.synchronous import Numbers
from paceline.runtime.engines.virtual.rows import Rows
from paceline.runtime.engines.virtual.world import ComputeTimes, World, exchange_all
from paceline.runtime.runs.trace import Kind

Times = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
ONE_NUMBER = 8  # bytes of a part of a product


def run_synchronous(
    plan: Plan,
    method: Synchronous,
    agenda: Agenda,
    world: World,
    size: int,
    sums: Numbers | None,
    rows: Rows,
) -> None:
    """Run the program of a method without a server."""
    workers = list(range(plan.workers))
    # Where nothing is exchanged each worker is on its own, and only the numbers of the first are computed.
    for ranks in [[worker] for worker in workers] if method.collective is None else [workers]:
        numbers = sums if sums is not None and ranks[0] == 0 else InTimeOnly()
        team = Lockstep(ranks, plan, agenda, world, size, rows, numbers)
        run(method.program(team), team.answers)


class InTimeOnly:
    """Stands for numbers where only times are simulated. Of every line search the first trial is taken."""

    sizes: Sequence[int] = ()
    products_take_time = False

    def __init__(self) -> None:
        self._evaluations = 0
        self.answers: dict[type, Callable[..., Any]] = dict.fromkeys(ALL_EFFECTS, lambda *_: None) | {
            Recall: tuple,
            Keep: self.keep,
            Product: lambda update, command: -1.0,
        }

    def gradient(self, update: int, version: int, whole: bool, again: bool) -> None:
        """Compute nothing."""

    def losses(self, gradients: None) -> tuple[float, float]:
        return math.nan, -1.0

    def sum(self, update: int, gradients: None) -> None:
        """Add up nothing."""

    def messages(self, exchange: int) -> Sequence[int]:
        return ()

    def keep(self, gradient: None) -> float:
        """Return a loss that is lower than all before."""
        self._evaluations += 1
        return -float(self._evaluations)

    def made(self, updates: int, seconds: float) -> None:
        """Keep no snapshot."""


class Lockstep:
    """The `Worker` of a program that stands for several, with the answers to its effects."""

    def __init__(
        self,
        ranks: list[int],
        plan: Plan,
        agenda: Agenda,
        world: World,
        size: int,
        rows: Rows,
        numbers: Numbers | InTimeOnly,
    ) -> None:
        self.ranks, self.rank, self.workers = np.array(ranks), ranks[0], plan.workers
        self.first, self.last = 0, agenda.updates
        self.plan, self.agenda, self.world, self.rows, self.numbers = plan, agenda, world, rows, numbers
        #: The collective, and the bytes that an exchange of each fragment works on.
        self.collective = program_of(plan).collective
        self.sizes = numbers.sizes or [size // plan.fragments] * plan.fragments
        if self.collective is not None:
            coded = [exchanged(plan.codec, self.collective, plan.workers, each) for each in self.sizes]
            self.collective, self.sizes = coded[0][0], [round(vector) for _, vector in coded]
        self.membership = plan.membership()
        self.compute_times = ComputeTimes(world, ranks)
        #: When each worker is ready for what comes next, in seconds.
        self.ready: Times = np.zeros(len(ranks))
        #: When the exchange under way ends for each worker, and the bytes that each sends.
        self.under_way = self.ready, np.zeros(0, np.int64)
        #: The samples of every worker's share of an update, by the samples of the update.
        self._samples: dict[int, Counts] = {}
        #: Effects that take no time are answered by the numbers alone.
        self.answers: dict[type, Callable[..., Any]] = {
            **numbers.answers,
            Gradient: self.gradient,
            Sum: self.sum,
            OptimizerStep: self.step,
            Exchange: self.exchange,
            BeginExchange: self.begin_exchange,
            EndExchange: self.end_exchange,
            Product: self.product,
            Gather: self.gather,
            Finish: self.finish,
        }

    def updates(self, *, dealt: bool = False, until: Callable[[range], range] = all_of) -> Iterator[int]:
        for update in range(self.rank, self.last, self.workers) if dealt else range(self.last):
            yield update
            self.numbers.made(update + 1, float(self.ready.max()))

    def gradient(self, update: int, version: int, whole: bool, again: bool) -> Any:
        samples = self._samples_of(update, whole)
        computed = self.ready + self.compute_times.draw_all(samples)
        self._check_deaths(computed, update)
        gradients: Any = self.numbers.gradient(update, version, whole, again)
        losses, weights = self.numbers.losses(gradients)
        columns = {"samples": 0 if again else samples, "value": losses, "weight": weights}
        self._record(Kind.COMPUTE, update, computed, base=version, **columns)
        return gradients

    def sum(self, update: int, gradients: Any) -> Any:
        total = self.numbers.sum(update, gradients)  # first: what is in a message decides how long it is
        self._exchange(update, self.sizes[0], self.numbers.messages(update))
        return total

    def step(self, update: int, version: int, gradients: Any) -> None:
        self.numbers.answers[OptimizerStep](update, version, gradients)
        self._apply(update, version)

    def exchange(self, exchange: int, update: int) -> None:
        self.numbers.answers[Exchange](exchange, update)
        self._exchange(update, self.sizes[exchange % len(self.sizes)], self.numbers.messages(exchange))

    def begin_exchange(self, exchange: int, update: int) -> None:
        self.numbers.answers[BeginExchange](exchange, update)
        size, messages = self.sizes[exchange % len(self.sizes)], self.numbers.messages(exchange)
        ends, _, sent = self._exchanged(size, messages)
        self.under_way = ends, sent

    def end_exchange(self, exchange: int, update: int) -> None:
        self.numbers.answers[EndExchange](exchange, update)
        ends, sent = self.under_way
        waited, ready = np.maximum(ends - self.ready, 0.0), np.maximum(self.ready, ends)
        self._record(Kind.COLLECTIVE, update, ready, base=update, bytes=sent, value=0.0, waited=_whole(waited))

    def product(self, update: int, command: Dot) -> float:
        product: float = self.numbers.answers[Product](update, command)
        if self.numbers.products_take_time:
            self._exchange(update, ONE_NUMBER)
        return product

    def gather(self, update: int) -> None:
        self.numbers.answers[Gather](update)
        self._exchange(update, self.sizes[0])

    def finish(self, update: int, remembers: object) -> None:
        self.numbers.answers[Finish](update, remembers)
        self._apply(update, update + 1)

    def _samples_of(self, update: int, filled: bool) -> Counts:
        """Return the samples of each worker's share of an update."""
        _, start, stop = self.agenda.span(update)
        if stop - start not in self._samples:
            parts = self.membership.parts_by_rank(update).values()
            shares = [self.agenda.filled(update)] if filled else [self.agenda.share(update, each) for each in parts]
            self._samples[stop - start] = np.array([sum(chunk.samples for chunk in chunks) for chunks in shares])
        return self._samples[stop - start]

    def _check_deaths(self, ready: Times, update: int) -> None:
        for worker, clock in zip(self.ranks.tolist(), ready.tolist(), strict=True) if self.world.deaths else ():
            if self.world.deaths.get(worker, math.inf) < clock:
                advice = "the plan cannot continue without it"
                raise WorkerDied(Failure(worker, "died, as its world says", Position(update), advice=advice))

    def _exchange(self, update: int, size: float, messages: Sequence[int] = ()) -> None:
        """Move every worker's clock to the end of a collective."""
        ends, waited, sent = self._exchanged(size, messages)
        self._record(Kind.COLLECTIVE, update, ends, base=update, bytes=sent, value=0.0, waited=_whole(waited))

    def _exchanged(self, size: float, messages: Sequence[int]) -> tuple[Times, Times, Counts]:
        """Return when each worker leaves a collective, how long it waited, and the bytes that it sent.

        `messages` are the bytes of each, where they vary.
        """
        assert self.collective is not None
        ends, waited, sent = exchange_all(self.collective, self.ready, sum(messages) or size, self.world)
        return ends, waited, (self.workers - 1) * np.array(messages) if messages else sent

    def _apply(self, update: int, version: int) -> None:
        self._record(Kind.APPLY, update, self.ready + self.world.update, shard=0, base=version - 1, version=version)

    def _record(self, kind: Kind, update: int, ready: Times, **columns: Any) -> None:
        """Move every worker's clock, and write a row of each."""
        start, self.ready = self.ready, ready
        self.rows.add_all(kind, update, worker=self.ranks, start=_whole(start), end=_whole(ready), **columns)


def _whole(seconds: Times) -> Counts:
    """Convert virtual seconds to the nanoseconds of a trace."""
    return np.rint(seconds * 1e9).astype(np.int64)
