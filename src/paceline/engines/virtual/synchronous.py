"""A method without a server in a virtual world: every update is computed, exchanged and applied on one clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.core.agenda import Agenda, Chunk
from paceline.core.codecs.sizes import exchanged
from paceline.core.collectives import Collective
from paceline.engines.arithmetic.coded import CodedPayloads
from paceline.engines.arithmetic.synchronous import CoordinatedWorkers, SynchronousArithmetic
from paceline.engines.virtual.exchange import exchange, exchange_all
from paceline.engines.virtual.rows import Rows
from paceline.engines.virtual.world import ComputeTimes, World, nanoseconds
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.gradients.learner import stated_weight
from paceline.plans.methods import Synchronous
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind, Row


def run_synchronous(
    plan: Plan, method: Synchronous, agenda: Agenda, world: World, size: int, sums: SynchronousArithmetic | None,
    rows: Rows,
) -> None:  # fmt: skip
    """Run a method without a server."""
    run = _Run(plan, method, agenda, world, size, sums, rows)
    at_once = sums is None and method.collective is not None and not plan.traits.repeats and not world.deaths
    for update in range(agenda.updates):
        if at_once:
            run.make_all(update)
        else:
            run.make(update)


class _Run:
    """One simulated run."""

    def __init__(
        self,
        plan: Plan,
        method: Synchronous,
        agenda: Agenda,
        world: World,
        size: int,
        sums: SynchronousArithmetic | None,
        rows: Rows,
    ) -> None:
        self.plan, self.agenda, self.world, self.sums = plan, agenda, world, sums
        self.collective, self.streaming = method.collective, method.streaming
        payloads = getattr(sums, "payloads", None)
        #: The bytes that an exchange of each fragment works on, and how many exchanges have begun.
        self.sizes, self.exchanges = payloads.sizes if payloads else [size // plan.fragments] * plan.fragments, 0
        if self.collective is not None:
            found = [exchanged(plan.codec, self.collective, plan.workers, each) for each in self.sizes]
            self.collective, self.sizes = found[0][0], [round(vector) for _, vector in found]
        #: When the exchange under way ends for each worker, in seconds, and the bytes that each sends.
        self.flight = np.zeros(0), np.zeros(0, np.int64)
        self.compute_times, self.rows = ComputeTimes(world, plan.workers), rows
        #: When each worker is ready for what comes next, in seconds.
        self.ready = [0.0] * plan.workers
        #: The samples of every worker's share of an update, by the samples of the update.
        self.shares: dict[int, npt.NDArray[np.int64]] = {}
        if isinstance(sums, CoordinatedWorkers):
            sums.on_exchange = self._evaluate_again

    def make(self, update: int) -> None:
        """Make one update: every worker computes, exchanges where an exchange is due, and steps."""
        plan, shares = self.plan, []
        parts = self._parts(update)
        for worker, chunks in parts:
            samples, loss, weight = sum(c.samples for c in chunks), math.nan, -1.0
            times = self._compute(worker, samples, update)
            if self.sums is not None and (worker == 0 or self.collective is not None):
                shares.append(self.sums.compute(worker, chunks))
                loss, weight = shares[-1].mean, stated_weight(self.sums.setup.job, shares[-1])
            row = (worker, update, -1, update, -1, *times)
            self.rows.add(Row(Kind.COMPUTE, *row, samples=samples, value=loss, weight=weight))
        computed = self.sums if shares else None  # of workers that exchange nothing, only the first one's is
        if computed is not None and not plan.traits.repeats:
            computed.apply(update, shares)  # before the exchange: what is in a message decides how long it is
        if self.collective is not None:
            self._land(update)
            for number in self._due(update):
                size, messages = self.sizes[number % len(self.sizes)], self._messages(number)
                self._exchange(self.collective, size, update, messages, self._overlaps(update))
        if plan.traits.repeats and self.sums is None:
            # Without numbers to decide by, the first trial of the line search is taken.
            self._evaluate_again(update, self.sizes[0], [])
            self._evaluate_again(update, self.sizes[0], [math.nan] * plan.workers)
        if computed is not None:
            if plan.traits.repeats:
                computed.apply(update, shares)  # which evaluates again, and says so
            computed.snapshots.keep(update + 1, max(self.ready))
        for worker, _ in parts:
            start = self.ready[worker]
            self.ready[worker] += self.world.update
            times = nanoseconds(start), nanoseconds(self.ready[worker])
            self.rows.add(Row(Kind.APPLY, worker, update, 0, update, update + 1, *times))

    def make_all(self, update: int) -> None:
        """Make one update in time only, all workers at once: the same rows as `make`, without Python for each."""
        assert self.collective is not None
        begin, samples = np.array(self.ready), self._samples(update)
        computed = begin + self.compute_times.draw_all(samples)
        version = {"base": update, "version": update + 1}
        self.rows.add_all(
            Kind.COMPUTE, update, base=update, start=_whole(begin), end=_whole(computed), samples=samples
        )  # fmt: skip
        self.ready = computed.tolist()
        self._land(update)
        ready = np.array(self.ready)
        for number in self._due(update):
            arrived, size = ready, self.sizes[number % len(self.sizes)]
            found, waited, sent = exchange_all(self.collective, arrived, size, self.world)
            if self._overlaps(update):
                self.flight = found, sent
                continue
            ready = found
            times = {"start": _whole(arrived), "end": _whole(ready), "waited": _whole(waited)}
            self.rows.add_all(Kind.COLLECTIVE, update, base=update, bytes=sent, value=0.0, **times)
        done = ready + self.world.update
        self.rows.add_all(Kind.APPLY, update, shard=0, start=_whole(ready), end=_whole(done), **version)
        self.ready = done.tolist()

    def _samples(self, update: int) -> npt.NDArray[np.int64]:
        """The samples of every worker's share of an update."""
        _, start, stop = self.agenda.span(update)
        if stop - start not in self.shares:
            mine = (self.agenda.mine(update, worker) for worker in range(self.plan.workers))
            self.shares[stop - start] = np.array([sum(c.samples for c in chunks) for chunks in mine])
        return self.shares[stop - start]

    def _parts(self, update: int) -> Sequence[tuple[int, list[Chunk]]]:
        """(worker, its chunks) of an update; workers that exchange nothing take whole updates one after another."""
        if self.collective is None:
            return [(update % self.plan.workers, self.agenda.filled(update))]
        return [(worker, self.agenda.mine(update, worker)) for worker in range(self.plan.workers)]

    def _due(self, update: int) -> range:
        """Return the numbers of the exchanges after an update."""
        due = self.streaming.after(update, self.agenda.updates) if self.streaming is not None else 1
        self.exchanges += due
        return range(self.exchanges - due, self.exchanges)

    def _evaluate_again(self, update: int, size: int, losses: list[float]) -> None:
        """Time the exchanges and evaluations that follow an update's first evaluation under a coordinator."""
        for worker, loss in enumerate(losses):
            samples = sum(c.samples for c in self.agenda.mine(update, worker))
            times = self._compute(worker, samples, update)
            self.rows.add(Row(Kind.COMPUTE, worker, update, -1, update, -1, *times, value=loss))
        assert self.collective is not None
        self._exchange(self.collective, size, update)

    def _compute(self, worker: int, samples: int, update: int) -> tuple[int, int]:
        """Move a worker's clock over a computation: when it began and ended, in nanoseconds."""
        start = self.ready[worker]
        self.ready[worker] += self.compute_times.draw(worker, samples)
        if self.world.deaths.get(worker, math.inf) < self.ready[worker]:
            advice = "the plan cannot continue without it"
            raise WorkerDied(Failure(worker, "died, as its world says", Position(update), advice=advice))
        return nanoseconds(start), nanoseconds(self.ready[worker])

    def _exchange(
        self, collective: Collective, size: int, update: int, messages: Sequence[int] = (), overlaps: bool = False
    ) -> None:
        """Move every worker's clock to the end of the collective; one row each. `messages` are bytes, if they vary.

        One that overlaps computing is only begun, and moves no clock before it is applied.
        """
        arrived = list(self.ready)
        ends, waited, sent = exchange(collective, arrived, sum(messages) or size, self.world)
        if messages:
            sent = [(self.plan.workers - 1) * size for size in messages]
        if overlaps:
            self.flight = np.array(ends), np.array(sent)
            return
        self.ready[:] = ends
        for worker, begin in enumerate(arrived):
            times = nanoseconds(begin), nanoseconds(self.ready[worker]), nanoseconds(waited[worker])
            self.rows.add(Row(Kind.COLLECTIVE, worker, update, -1, update, -1, *times, 0, sent[worker], 0.0))

    def _overlaps(self, update: int) -> bool:
        """Whether exchanges that begin after this update are made while the next ones are computed."""
        return self.streaming is not None and self.streaming.overlaps(update, self.agenda.updates)

    def _land(self, update: int) -> None:
        """Move every worker's clock to the end of the exchange under way, if that is applied after this update."""
        if self.streaming is None or not self.streaming.lands(update, self.agenda.updates):
            return
        ready, (ends, sent) = np.array(self.ready), self.flight
        self.ready = np.maximum(ready, ends).tolist()
        times = {"start": _whole(ready), "end": _whole(np.array(self.ready))}
        waited = _whole(np.maximum(ends - ready, 0.0))
        self.rows.add_all(Kind.COLLECTIVE, update, base=update, bytes=sent, value=0.0, waited=waited, **times)

    def _messages(self, number: int) -> list[int]:
        """Return the bytes of each worker's message in an exchange, where they follow from its gradient."""
        codec, payloads = self.plan.codec, getattr(self.sums, "payloads", None)
        return payloads.bytes(number) if codec and codec.variable and isinstance(payloads, CodedPayloads) else []


def _whole(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Convert virtual seconds to the nanoseconds of a trace."""
    return np.rint(seconds * 1e9).astype(np.int64)
