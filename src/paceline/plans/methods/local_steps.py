"""LocalSteps and Gossip: every worker steps a replica of its own, and after some steps replicas are averaged.

Under `LocalSteps` a collective averages all replicas (local SGD, elastic averaging, DiLoCo); under `Gossip` every
worker mixes with its neighbours on a graph only, so replicas never agree exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.proof import prove, prove_mixing
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.algorithms.rules import Averaging
from paceline.algorithms.rules.averaging import Streaming
from paceline.plans.methods import Division, Synchronous, Traits, computed
from paceline.plans.methods.prediction import Estimate, Prices, meetings
from paceline.plans.methods.program import (
    BeginExchange,
    EndExchange,
    EndOfTraining,
    Exchange,
    Gradient,
    Offer,
    OptimizerStep,
    Program,
    Worker,
)
from paceline.plans.methods.views import FITTING, OWN_STEP, WAITS, Mixing, Summing, Timeline, shortened

NEVER = 10**6  # more updates than are predicted, where replicas are averaged at the end alone
ARITHMETIC = "what becomes of averaged replicas is arithmetic, which tests compare with its equation"


@dataclass(frozen=True)
class LocalSteps(Synchronous):
    """Averages all replicas after some local steps, whole or in fragments."""

    collective: Collective
    averaging: Averaging = field()  # or it would have the default of other methods, None
    #: Parts of the parameters that are exchanged one after another.
    fragments: int = 1
    #: Updates that are made while a fragment is exchanged.
    overlap: int = 0

    traits = Traits(devices="summed")
    family = "meeting"

    @computed
    def streaming(self) -> Streaming:
        return Streaming(self.averaging.every, self.fragments, self.overlap)

    @computed
    def exchange_every(self) -> int:
        return self.averaging.every

    @computed
    def unflushed(self) -> bool:
        return self.fragments > 1 or self.overlap > 0

    def program(self, worker: Worker) -> Program:
        return _averaged(self, worker)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers)

    def prove(self, workers: int) -> None:
        prove(self.collective, workers)

    def predict(self, prices: Prices) -> Estimate:
        every = self.averaging.every or NEVER
        estimate = meetings(prices, self.collective, every, prices.workers, self.fragments)
        terms = estimate.terms
        hidden = self.overlap * terms.own * self.fragments / every  # as far as computing covers the exchanges
        return replace(estimate, terms=replace(terms, exchange=max(0.0, terms.exchange - hidden)))

    def picture(self, workers: int) -> Timeline:
        every, note = shortened(self.averaging.every)
        averaging = replace(self.averaging, every=every) if note else self.averaging  # type: ignore[type-var]
        updates = max(6, 2 * every) if every else FITTING  # two averages; or one, at the end
        table = type(self.collective).__name__
        meets = f"Replicas are averaged by an all-reduce among all workers, by the table of {table}."
        signs = OWN_STEP, "  M   averages its replica with the others'", WAITS
        return Timeline(updates, signs, (meets,), fitting=replace(self, averaging=averaging), note=note)

    def claim(self, workers: int) -> Summing:
        return Summing(self.collective, open=(ARITHMETIC,))


@dataclass(frozen=True)
class Gossip(Synchronous):
    """Mixes each replica with its neighbours' after some local steps."""

    collective: Neighbours
    averaging: Averaging = field()  # or it would have the default of other methods, None

    traits = Traits()
    family = "meeting"

    @computed
    def streaming(self) -> Streaming:
        return Streaming(self.averaging.every)

    @computed
    def exchange_every(self) -> int:
        return max(1, self.averaging.every)

    def program(self, worker: Worker) -> Program:
        return _averaged(self, worker)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers, results=workers)  # replicas that never agree are averaged

    def prove(self, workers: int) -> None:
        prove_mixing(self.collective, workers)

    def predict(self, prices: Prices) -> Estimate:
        return meetings(prices, self.collective, max(1, self.averaging.every), min(prices.workers, 3))

    def picture(self, workers: int) -> Timeline:
        others = sorted(other for other, _ in self.collective.weights(0, workers)[1:])
        named = f"worker{'s' * (len(others) > 1)} {', '.join(map(str, others))}"
        says = (
            f"Worker 0 mixes its parameters with those of {named}."
            if others
            else "Worker 0 has no neighbour to mix with."
        )
        return Timeline(6, (OWN_STEP, "  M   mixes with its neighbours", WAITS), (says,))

    def claim(self, workers: int) -> Mixing:
        return Mixing(self.collective)


def _averaged(method: LocalSteps | Gossip, worker: Worker) -> Program:
    """Step a replica in every update, and average it with the others after those updates that `streaming` names."""
    exchanges = _Exchanges(method.streaming, worker)
    if method.averaging.mixes_first:
        return _averaged_before_steps(worker, exchanges)
    return _averaged_after_steps(worker, exchanges)


def _averaged_after_steps(worker: Worker, exchanges: _Exchanges) -> Program:
    update = worker.first
    try:
        for update in worker.updates(until=exchanges.streaming.ahead):
            yield from _local_step(update)
            yield from exchanges.after(update)
    except EndOfTraining:
        yield from exchanges.conclude(update - 1)


def _averaged_before_steps(worker: Worker, exchanges: _Exchanges) -> Program:
    """Average each replica before the step whose gradient is ready: meanwhile others may have come so far as well."""
    update = worker.first
    try:
        for update in worker.updates():
            exchanges.number = exchanges.streaming.before(update, worker.last)
            if exchanges.due(update):
                yield Offer(exchanges.number)
            yield from _local_step(update, exchanges)
    except EndOfTraining:
        yield from exchanges.conclude(update - 1)


def _local_step(update: int, exchanges: _Exchanges | None = None) -> Program:
    """Step a replica; `exchanges` are made as soon as its gradient is ready."""
    gradient = yield Gradient(update, version=update)
    if exchanges is not None:
        yield from exchanges.make(update, exchanges.due(update))
    yield OptimizerStep(update, update + 1, gradient)


class _Exchanges:
    """The exchanges of one replica, by the updates after which they are due."""

    def __init__(self, streaming: Streaming, worker: Worker) -> None:
        self.streaming, self.updates = streaming, worker.last
        #: The number of the next exchange, and whether all replicas have been brought together by the last ones.
        self.number, self.together = streaming.before(worker.first, worker.last), True

    def due(self, update: int) -> int:
        return self.streaming.after(update, self.updates)

    def after(self, update: int) -> Program:
        """End the exchange that is applied after this update, and begin those that are due."""
        if self.streaming.lands(update, self.updates):
            yield EndExchange(self.number - 1, update)
        if overlaps := self.due(update) > 0 and self.streaming.overlaps(update, self.updates):
            yield BeginExchange(self.number, update)
            self.number += 1
        else:
            yield from self.make(update, self.due(update))
        self.together = self.due(update) == self.streaming.fragments and not overlaps

    def make(self, update: int, count: int) -> Program:
        """Make so many exchanges after this update, and wait for each."""
        for _ in range(count):
            yield Exchange(self.number, update)
            self.number += 1

    def conclude(self, update: int) -> Program:
        """Bring all replicas together after an update that was the last."""
        if self.together:
            return
        if self.streaming.under_way(update + 1):
            yield EndExchange(self.number - 1, update)
        yield from self.make(update, self.streaming.fragments)
