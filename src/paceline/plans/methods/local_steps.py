"""LocalSteps and Gossip: every worker steps a replica of its own, and after some steps replicas are averaged.

Under `LocalSteps` a collective averages all replicas (local SGD, elastic averaging, DiLoCo); under `Gossip` every
worker mixes with its neighbours on a graph only, so replicas never agree exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.collectives import Collective
from paceline.core.collectives.neighbours import Neighbours
from paceline.core.collectives.proof import prove, prove_mixing
from paceline.core.rules import Averaging
from paceline.core.streaming import Streaming
from paceline.plans.methods import Division, Traits
from paceline.plans.methods.program import (
    BeginExchange,
    EndExchange,
    EndOfTraining,
    Exchange,
    Gradient,
    Offer,
    Program,
    Step,
    Worker,
)


@dataclass(frozen=True)
class LocalSteps:
    """Averages all replicas after some local steps, whole or in fragments."""

    collective: Collective
    averaging: Averaging
    #: Parts of the parameters that are exchanged one after another.
    fragments: int = 1
    #: Updates that are made while a fragment is exchanged.
    overlap: int = 0

    @property
    def streaming(self) -> Streaming:
        return Streaming(self.averaging.every, self.fragments, self.overlap)

    coordinator = None
    traits = Traits(devices="summed")

    def program(self, worker: Worker) -> Program:
        return _averaged(self, worker)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers)

    def prove(self, workers: int) -> None:
        prove(self.collective, workers)


@dataclass(frozen=True)
class Gossip:
    """Mixes each replica with its neighbours' after some local steps."""

    collective: Neighbours
    averaging: Averaging

    @property
    def streaming(self) -> Streaming:
        return Streaming(self.averaging.every)

    coordinator = None
    traits = Traits()

    def program(self, worker: Worker) -> Program:
        return _averaged(self, worker)

    def division(self, workers: int, chunks: int) -> Division:
        return Division(workers, results=workers)  # replicas that never agree are averaged

    def prove(self, workers: int) -> None:
        prove_mixing(self.collective, workers)


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
    yield Step(update, update + 1, gradient)


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
