"""The seconds of an update under a plan: its method predicts them, by the prices of parts that are looked up here."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from paceline.algorithms.codecs.sizes import exchanged
from paceline.algorithms.collectives import Collective
from paceline.algorithms.schedules import Table
from paceline.planning.planner import pipelines
from paceline.planning.planner.card import Overhead
from paceline.planning.planner.costs import Costs, meeting, single
from paceline.planning.planner.divisions import layers_share
from paceline.planning.planner.doubt import min_error
from paceline.planning.planner.facts import Facts, answer_of, coding_of, reads
from paceline.planning.planner.memory import worker_memory
from paceline.planning.planner.prediction import Prediction
from paceline.planning.planner.waiting import waiting
from paceline.plans.methods.prediction import Coding, Estimate, Guess, NotPredicted, Share, Terms, sent
from paceline.plans.plan import Plan

#: Families whose workers compute parts of the model: measurements correct all their terms, not only what is besides.
DIVIDED = ("stages", "parts")
FACTORS = 0.05, 20.0  # of an overhead
ANCHORED = 0.35  # error of an overhead that was measured with another plan of the family


def overhead_of(plan: Plan, costs: Costs, facts: Facts, seconds: float) -> Overhead:
    """Return the overhead with which the seconds of this plan's update are predicted as they were measured."""
    family = plan.method.family
    terms = _estimated(plan, costs, facts).terms
    factor = seconds / terms.whole if family in DIVIDED else (seconds - terms.own) / max(terms.rest, 1e-9)
    return Overhead(family, plan.workers, min(FACTORS[1], max(FACTORS[0], factor)), ANCHORED)


def predict(plan: Plan, costs: Costs, facts: Facts, compute: str = "autograd") -> Prediction:
    """Predict the seconds of an update, its bytes and the memory of a worker."""
    family = plan.method.family
    estimate = _corrected(_estimated(plan, costs, facts), costs.overhead(family, plan.workers))
    error = max(estimate.error, min_error(costs.level, family, plan.workers > costs.card.cores))
    memory = worker_memory(plan, costs, facts.batch, facts.division)
    return Prediction(
        plan, compute, costs.level, facts.batch, estimate.terms, error, estimate.bytes, memory, estimate.staleness
    )


def _estimated(plan: Plan, costs: Costs, facts: Facts) -> Estimate:
    return plan.method.predict(PlanPrices(plan, costs, facts))


def _corrected(estimate: Estimate, by: Overhead) -> Estimate:
    """Return the estimate, corrected by plans of its family that were measured."""
    if not by.error:
        return estimate
    terms = estimate.terms
    if by.family in DIVIDED:
        return replace(estimate, terms=terms.scaled(by.factor), own=by.error, rest=by.error)
    more = (terms.exchange * by.factor, terms.wait * by.factor, terms.between * by.factor)
    return replace(estimate, terms=Terms(terms.compute, terms.update, *more), rest=by.error)


@dataclass(frozen=True)
class PlanPrices:
    """`Prices` of one job under one plan, by the costs of its model and a card."""

    plan: Plan
    costs: Costs
    facts: Facts

    @property
    def workers(self) -> int:
        return self.plan.workers

    @property
    def chunks(self) -> int:
        return self.plan.chunks

    @property
    def threads(self) -> int:
        return self.plan.threads

    @property
    def cores(self) -> int:
        return self.costs.card.cores

    @property
    def payload(self) -> int:
        return self.facts.payload

    @property
    def served(self) -> int:
        return self.facts.served

    def samples(self, parts: int) -> int:
        return self.facts.samples(parts)

    def compute(self, samples: int) -> Guess:
        return self.costs.compute(samples, self.workers, self.threads)

    def update(self) -> Guess:
        return self.costs.update(self.workers, self.threads)

    def between(self, kind: str) -> float:
        if kind == "alone":
            return self.costs.between(kind, 1, self.threads)
        return self.costs.between(kind, self.workers)

    def one(self, kind: str, size: float) -> Guess:
        return single(self.costs, kind, self.workers, size)

    def whole(self, kind: str, collective: Collective, size: float) -> Guess:
        if self.costs.card.exchange(kind, self.workers) is None:
            raise NotPredicted(f"the card has no measurement of {kind}'s all-reduce; calibrate with more --seconds")
        return meeting(self.costs, collective, self.workers, size, kind)

    def coded(self, collective: Collective, fragments: int) -> tuple[Guess, float]:
        coding, codec = coding_of(self.plan, self.facts), self.plan.codec
        collective, size = exchanged(codec, collective, self.workers, coding.bytes)
        parts = fragments * (2 if codec is not None and codec.in_two else 1)  # one after the other
        each = meeting(self.costs, collective, self.workers, size / parts)
        seconds = parts * each.seconds + coding.encode + reads(self.plan) * coding.decode
        return Guess(seconds, each.error), sent(collective, self.workers, size)

    def pushed(self) -> Coding:
        return coding_of(self.plan, self.facts)

    def answered(self) -> Coding:
        return answer_of(self.plan, self.facts)

    def waiting(self, together: int, compute: float, steps: int = 1) -> float:
        return waiting(self.costs, self.plan, together, compute, steps)

    def on_clock(self, table: Table, micro_batches: int, updates: int, again: Collection[int]) -> Estimate:
        samples = max(1, math.ceil(self.facts.batch / micro_batches))
        return pipelines.on_clock(self.costs, self.plan, table, samples, micro_batches, updates, again)

    def division_bytes(self) -> float | None:
        return self.facts.division.bytes if self.facts.division else None

    def share(self, samples: int) -> Share:
        division = self.facts.division
        if division is None:
            raise NotPredicted("how the layers are split is known on the machine that would run them")
        computed = layers_share(self.costs.layers(samples, self.workers, self.threads), division)
        return Share(computed, division.held, division.messages, division.bytes, division.segments)

    def link(self) -> tuple[float, float, float]:
        segment, exchange = self.between("meeting"), self.costs.card.exchange("meeting", self.workers)
        if part := self.costs.card.exchange("part", self.workers):
            segment, exchange = part.latency, part
        bandwidth = exchange.bandwidth if exchange else math.inf
        return self.one("meeting", 0.0).seconds, segment, bandwidth
