"""The seconds of an update under a plan: its method predicts them, by the prices of parts that are looked up here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from paceline.algorithms.codecs.catalogue import exchanged
from paceline.algorithms.collectives import Collective
from paceline.algorithms.schedules import BACKWARD, FORWARD, INPUTS, WEIGHTS, Table
from paceline.algorithms.schedules.clock import Place, Walk, clocked
from paceline.algorithms.schedules.worker import Agree, Compute, Effect, Send, Update
from paceline.algorithms.splits import balanced
from paceline.planning.planner import fitting
from paceline.planning.planner.card import Overhead
from paceline.planning.planner.costs import Costs, meeting, single
from paceline.planning.planner.facts import Facts, answer_of, coding_of, layers_share, reads
from paceline.planning.planner.memory import worker_memory
from paceline.planning.planner.prediction import Prediction
from paceline.plans.methods.prediction import CROWDED_MESSAGE, Coding, Estimate, Guess, NotPredicted, Share, Terms, sent
from paceline.plans.plan import Plan

# --- Pipelines: the table of the schedule on the clock, with the seconds of each stage and message --------------------
# The model's modules in the order of their first forward call are the pieces; `algorithms.splits` balances
# them into stages, as the real cut does. Each micro-batch is computed alone, so the figures are those of a micro-
# batch.

ERROR = 0.35  # of a stage's seconds: where the model is cut is not known before it is traced


@dataclass(frozen=True)
class StageSeconds:
    """One stage of the model, in seconds of a micro-batch, and the bytes that it sends on."""

    forward: float
    backward: float
    made: float


def on_clock(
    costs: Costs, plan: Plan, table: Table, samples: int, micro: int, updates: int, again: Collection[int]
) -> Estimate:
    """Put so many updates of a table on the clock, each of `micro` micro-batches of so many samples."""
    workers, count = plan.workers, table.stages
    cores, turns = costs.card.cores, max(1.0, workers * plan.threads / costs.card.cores)
    # Stages that wait leave their cores to others.
    stages = cut(costs, samples, count, min(workers, cores), plan.threads)
    # Without a measurement a message is one step of a meeting, and each piece of work has an update's Python.
    measured = costs.card.exchange("stage", workers)
    piece = measured.latency if measured else costs.between("meeting", workers)
    kind = "message" if costs.card.exchange("message", workers) else "meeting"
    message = [single(costs, kind, workers, stage.made).seconds for stage in stages]
    if measured:
        crowd = 0.0
        if min(workers, micro) > cores:  # a message wakes its receiver, which costs more where workers outnumber cores
            few, many = (single(costs, "meeting", count, 0.0).seconds for count in (measured.workers, workers))
            crowd = CROWDED_MESSAGE * max(0.0, many - few)
        message = [crowd + stage.made / measured.bandwidth for stage in stages]
    update = costs.update(min(workers, cores), plan.threads).seconds / count

    def lasts(place: Place, effect: Effect) -> float:
        match effect:
            case Send(channel):
                return message[min(channel)]
            case Agree():
                return piece
            case Update():
                return update
            case Compute(work):
                stage = stages[work.stage]
                half = stage.backward / 2
                share = {FORWARD: stage.forward, BACKWARD: stage.backward, INPUTS: half, WEIGHTS: half}
                more = stage.forward if work.what in (BACKWARD, INPUTS) and work.stage in again else 0.0
                return share[work.what] + more + piece
        return 0.0

    computed, updated, end = 0.0, 0.0, 0.0
    for timed in clocked(Walk.of(table), lasts):
        end = max(end, timed.end)
        updated += (timed.end - timed.start) * isinstance(timed.effect, Update)
        computed += (timed.end - timed.start) * isinstance(timed.effect, Compute)
    each, compute = max(end, (computed + updated) / workers * turns) / updates, computed / workers / updates
    wait = max(0.0, each - compute - updated / workers / updates)
    sent = sum(2 * stage.made for stage in stages[:-1]) * micro / workers
    return Estimate(Terms(compute, updated / workers / updates, 0.0, wait), ERROR, ERROR, sent)


def cut(costs: Costs, samples: int, count: int, workers: int, threads: int) -> list[StageSeconds]:
    """Cut the model's modules into so many stages that the slowest is as fast as possible."""
    compute = costs.compute(samples, workers, threads).seconds
    layers = [each for name, each in costs.layers(samples, workers, threads).items() if name and each.forward]
    total = sum(each.forward + each.backward for each in layers) or 1.0
    pieces = [(each.forward * compute / total, each.backward * compute / total, each.made) for each in layers]
    if len(pieces) < count:
        raise NotPredicted(f"the model has {len(pieces)} modules in a row, and the plan wants {count} stages")
    places = balanced([forward + backward for forward, backward, _ in pieces], count, [0.0] * len(pieces))
    bounds = [0, *places, len(pieces)]
    return [
        StageSeconds(sum(p[0] for p in part), sum(p[1] for p in part), part[-1][2])
        for part in (pieces[low:high] for low, high in itertools.pairwise(bounds))
    ]


# --- How far predictions of each family of plans were off, by which intervals are at least as wide --------------------
# The figures are 90% quantiles of the fitted jobs of `benchmarks/prediction`. A machine with a table of validations
# of its own follows that instead (`history`).

#: Half of a 90% interval, as a logarithm, by level and family.
OFF: dict[str, dict[str, float]] = {
    "calibrated": {
        "alone": 0.28,
        "meeting": 0.39,
        "push": 0.38,
        "ddp": 0.65,
        "stages": 0.38,
        "parts": 0.43,
        "gathers": 0.43,
    },
    "profiled": {
        "alone": 0.22,
        "meeting": 0.22,
        "push": 0.18,
        "ddp": 0.26,
        "stages": 0.28,
        "parts": 0.55,
        "gathers": 0.43,
    },
}
CROWDED = 1.3  # times as far off with more workers than cores


def min_error(level: str, family: str, crowded: bool) -> float:
    """Return the least error of a prediction; 0 at levels that have an error of their own."""
    return OFF.get(level, {}).get(family, 0.0) * (CROWDED if crowded else 1.0)


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
        return on_clock(self.costs, self.plan, table, samples, micro_batches, updates, again)

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


# --- How long workers wait for the slowest of them, and for a core where there are more workers than cores ------------

SLICE = 3e-3  # seconds for which Linux lets a process run while another one waits for its core


def waiting(costs: Costs, plan: Plan, workers: int, compute: float, steps: int = 1) -> float:
    """Return the seconds, for each step of `compute` seconds, for which a worker waits for the slowest.

    The slowest of `workers` is waited for once in `steps` steps.
    """
    jitter = costs.jitter(plan.workers, plan.threads)
    slowest = fitting.mean_of_largest(jitter, workers) / fitting.mean_of_largest(jitter, 1) - 1.0
    return compute * (slowest / math.sqrt(steps) + crowded(plan, costs.card.cores, compute * steps))


def crowded(plan: Plan, cores: int, seconds: float) -> float:
    """Return by what share the last of more workers than cores is later than if they shared the cores evenly.

    The scheduler of the kernel changes workers after a slice of time. Shorter steps run one after the other: of three
    workers on two cores, one begins when another one has ended.
    """
    turns = plan.workers * plan.threads / cores
    if turns <= 1:
        return 0.0
    return (math.ceil(turns) / turns - 1.0) * min(1.0, SLICE * turns / max(seconds, 1e-9))
