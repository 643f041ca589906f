"""Methods with a server: a desk leases batches to workers, and a gate decides which workers may continue.

The desk is the same for all of them (`algorithms.server`); they differ in what is pushed to a shard and in how the
shard applies it. If a worker dies, its batch is leased again to another one. Each names the parts
that engines build it of, as `Server` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from paceline.algorithms.rules import Exchanging, Rule
from paceline.algorithms.rules.averaging import AdPsgd
from paceline.algorithms.rules.gradients import Plain
from paceline.algorithms.server.gates import Asynchronous, Gate
from paceline.algorithms.server.version_slots import ReplicaSlots
from paceline.algorithms.server.worker import push_every_batch, push_in_rounds
from paceline.plans.methods import IN_STEP, Division, Server, Traits, computed
from paceline.plans.methods.prediction import DOUBT, Estimate, Guess, Prices, Terms, error_of, queued
from paceline.plans.methods.views import OWN_STEP, WAITS, Timeline, pushes, shortened


@dataclass(frozen=True)
class ParameterServer(Server):
    """Gradients arrive at shards, whose rule and optimizer apply each at once, however old it is."""

    gate: Gate = field(default_factory=Asynchronous)
    rule: Rule = field(default_factory=Plain)
    shards: int = 1

    program = staticmethod(push_every_batch)

    @computed
    def traits(self) -> Traits:
        return Traits(
            synchronous=False,
            optimizer_at_server=True,
            takes_sparse=isinstance(self.rule, Plain),
            shares_parameters=True,
        )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, results=0)

    def predict(self, prices: Prices) -> Estimate:
        workers, message, answer = prices.workers, prices.pushed(), prices.answered()
        moved = message.bytes + answer.bytes
        # The price of a push is that of as many bytes both ways.
        c, u, p = prices.compute(prices.samples(1)), prices.update(), prices.one("push", moved / 2)
        # A server also reads what it answers, so that it knows what the worker has.
        p = Guess(p.seconds + message.decode + answer.encode + answer.decode, p.error)
        c = Guess(c.seconds + message.encode + answer.decode, c.error)
        between = prices.between("push")
        # More workers than cores take turns, but one that holds the lock has its core.
        turns = max(1.0, workers * prices.threads / prices.cores)
        rate, _ = queued(workers, c.seconds / turns + between, (u.seconds / turns + p.seconds) / self.shards)
        work = (c.seconds + u.seconds) / turns + between + p.seconds
        each = workers / min(rate, workers / turns / work)  # of one worker, from push to push
        wait = max(0.0, each - c.seconds - u.seconds - p.seconds - between)
        terms = Terms(c.seconds, u.seconds, p.seconds, wait, between).scaled(1 / workers)
        rest = error_of(p, Guess(between + wait, DOUBT))
        return Estimate(terms, error_of(c, u), rest, moved / workers, workers - 1.0)

    def picture(self, workers: int) -> Timeline:
        of = " of shard 0" if self.shards > 1 else ""
        return pushes(5 * workers, f"  3   pushes its gradient, which makes version 3{of}")


@dataclass(frozen=True)
class GatheringServer(Server):
    """A shard sums the first `gathers` gradients of a version, then applies them as one (backup workers)."""

    gate: Gate
    gathers: int = field()  # or it would have the default of other servers, 0

    program = staticmethod(push_in_rounds)
    traits = Traits(
        synchronous=False,
        optimizer_at_server=True,
        shares_parameters=True,
        gathers=True,
        repeats=True,
        needs_train="computes late batches again, and only your loop has them",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(self.gathers, shares=self.gathers, results=0)

    def predict(self, prices: Prices) -> Estimate:
        needed, workers = self.gathers, prices.workers
        c, u, p = prices.compute(prices.samples(needed)), prices.update(), prices.one("push", prices.served)
        p = Guess(p.seconds * needed, p.error)
        wait, between = prices.waiting(needed, c.seconds), prices.between("push")
        terms = Terms(c.seconds, u.seconds, p.seconds, wait, between)
        rest = error_of(p, Guess(between + wait, DOUBT))
        return Estimate(terms, error_of(c, u), rest, 2.0 * prices.served * needed / workers)

    def picture(self, workers: int) -> Timeline:
        return pushes(
            5, "  3   pushes its gradient, which is held for version 3", "  /   arrives too late: computes it again"
        )


@dataclass(frozen=True)
class CentreServer(Server):
    """A worker steps a replica of its own, then exchanges it with a centre that all share."""

    exchange: Exchanging = field()  # or it would have the default of other methods, None
    gate: Gate = field(default_factory=Asynchronous)

    program = staticmethod(push_every_batch)

    @computed
    def exchange_every(self) -> int:
        return max(1, self.exchange.every)

    @computed
    def traits(self) -> Traits:
        parts = "shares out parts of the data, and only your loop has them" if self.exchange.parts else ""
        return Traits(
            synchronous=False,
            needs_train=parts,
            no_codec="its workers exchange whole replicas with the centre, which no codec writes; use mode=synchronous",
        )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, block=self.exchange.every, data_parts=self.exchange.parts, results=0)

    def predict(self, prices: Prices) -> Estimate:
        workers, every = prices.workers, self.exchange_every
        c, u, p = prices.compute(prices.samples(1)), prices.update(), prices.one("push", prices.served)
        between = prices.between("push")
        think = (c.seconds + u.seconds + between) * every
        rate, wait = queued(workers, think, p.seconds)
        terms = Terms(c.seconds, u.seconds, p.seconds / every, wait / every, between)
        terms = terms.scaled(1 / rate / every / terms.whole)
        rest = error_of(p, Guess(between + wait / every, DOUBT))
        return Estimate(terms, error_of(c, u), rest, 2.0 * prices.served / every / workers, workers - 1.0)

    def picture(self, workers: int) -> Timeline:
        exchange = self.exchange
        if exchange.parts:
            sign = "  3   has trained on a part of the data, the third that is done; the next begins from the start"
            mean = "The result is the mean of one model for each part."
            return Timeline(3 * exchange.parts * exchange.every, (OWN_STEP, sign, WAITS), (mean,))
        every, note = shortened(exchange.every)
        fitting = replace(self, exchange=replace(exchange, every=every) if note else exchange)  # type: ignore[type-var]
        sign = "  3   exchanges with the centre, whose version 3 that makes"
        return Timeline(3 * workers * every, (OWN_STEP, sign, WAITS), staleness=True, fitting=fitting, note=note)


@dataclass(frozen=True)
class PairwiseGossip(Server):
    """A worker averages its replica with one neighbour's before each of its steps (AD-PSGD)."""

    pairing: AdPsgd = field()  # or it would have the default of other servers, None
    gate: Gate = field(default_factory=Asynchronous)

    slots = ReplicaSlots
    program = staticmethod(push_every_batch)
    traits = Traits(
        synchronous=False,
        shares_parameters=True,
        one_machine="its pairs average in the memory of one machine; use gossip with mode=synchronous",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, results=0)

    def predict(self, prices: Prices) -> Estimate:
        return _unqueued(prices, 2.0 * prices.served / prices.workers)

    def picture(self, workers: int) -> Timeline:
        sign = "  3   averages with one of its neighbours and makes its step: the third of all such exchanges"
        return pushes(5 * workers, sign)


@dataclass(frozen=True)
class Hogwild(Server):
    """All workers write into the same parameters without locks: there are no versions, and no order to replay."""

    gate: Gate = field(default_factory=Asynchronous)

    program = staticmethod(push_every_batch)
    traits = Traits(
        synchronous=False,
        takes_sparse=True,
        shares_parameters=True,
        versioned=False,
        not_replayable="without locks its updates have no order",
        one_machine=f"its workers write into one memory; on several machines use {IN_STEP}",
    )

    def division(self, workers: int, chunks: int) -> Division:
        return Division(chunks, results=0)

    def predict(self, prices: Prices) -> Estimate:
        return _unqueued(prices, 0.0)  # nothing is sent: all write into one memory

    def picture(self, workers: int) -> Timeline:
        return pushes(5 * workers, "  *   pushes", versions=False)


def _unqueued(prices: Prices, size: float) -> Estimate:
    """Predict workers that push without waiting for each other, and send so many bytes."""
    c, u, p = prices.compute(prices.samples(1)), prices.update(), prices.one("push", prices.served)
    between, workers = prices.between("push"), prices.workers
    terms = Terms(c.seconds, u.seconds, p.seconds, between=between).scaled(1 / workers)
    return Estimate(terms, error_of(c, u), error_of(p, Guess(between, DOUBT)), size, workers - 1.0)
