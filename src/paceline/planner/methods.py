"""The seconds of an update under each method, made of the seconds of its parts.

P workers, a batch of n samples. J(P) is the mean of the slowest of P workers over the mean of one.

    Alone             compute(n) + update                                   / P where there are several
    AllReduce         compute(n/P) J(P) + table's closed form + update
    LocalSteps        compute(n/P) + update + (fragments x closed form of one + waiting) / every
    Gossip            compute(n/P) J(2) + exchange with neighbours + update
    ParameterServer   a closed queueing network: P workers who compute, one shard that serves one push at a time
    Hogwild           (compute(n) + update) / P
    Pipeline          its table on the clock (`pipelines`)
    NativeDdp         compute(n/P) J(P) + PyTorch's all-reduce + update
    SplitLayers       compute of each layer, 1/P of it where it is split + its movements + update of the parts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paceline.core.codecs.sizes import exchanged
from paceline.core.collectives import Collective
from paceline.core.collectives.ring import Ring
from paceline.planner import servers
from paceline.planner.card import Overhead
from paceline.planner.costs import CROWDED_MESSAGE, Costs, Guess, meeting, single
from paceline.planner.divisions import layers_share
from paceline.planner.doubt import least_doubt
from paceline.planner.estimate import DIVIDED, Estimate, error_of
from paceline.planner.facts import Facts, coding_of, reads
from paceline.planner.memory import worker_memory
from paceline.planner.pipelines import pipeline
from paceline.planner.prediction import Prediction, Terms
from paceline.planner.waiting import waiting
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer
from paceline.plans.methods.split_layers import SplitLayers
from paceline.plans.plan import Plan

GATHER = 0.7  # of a segment's Python: what a gather or a scatter of one layer's parameters takes
SPLIT_ERROR = 0.5  # of the seconds of parts of layers: smaller operations than the card was fitted on
#: What plans have in common besides computing and updating.
FAMILIES: dict[type, str] = {
    AllReduce: "meeting", LocalSteps: "meeting", Gossip: "meeting", NativeDdp: "ddp", ParameterServer: "push",
    GatheringServer: "push", CentreServer: "push", PairwiseGossip: "push", Hogwild: "push", Pipeline: "stages",
    SplitLayers: "parts",
}  # fmt: skip
FACTORS = 0.05, 20.0  # of an overhead
ANCHORED = 0.35  # error of an overhead that was measured with another plan of the family


class NotMeasured(Exception):
    """The card lacks what a prediction needs; the message says what."""


def overhead_of(plan: Plan, costs: Costs, facts: Facts, seconds: float) -> Overhead:
    """Return the overhead with which the seconds of this plan's update are predicted as they were measured."""
    family = family_of(plan)
    found = PREDICT[type(plan.method)](plan, plan.method, costs, facts).terms
    factor = seconds / found.whole if family in DIVIDED else (seconds - found.own) / max(found.rest, 1e-9)
    return Overhead(family, plan.workers, min(FACTORS[1], max(FACTORS[0], factor)), ANCHORED)


def predict(plan: Plan, costs: Costs, facts: Facts, compute: str = "autograd") -> Prediction:
    """Predict the seconds of an update, its bytes and the memory of a worker."""
    found = PREDICT[type(plan.method)](plan, plan.method, costs, facts)
    family = family_of(plan)
    found = found.corrected(costs.overhead(family, plan.workers))
    error = max(found.error, least_doubt(costs.level, family, plan.workers > costs.card.cores))
    memory = worker_memory(plan, costs, facts.batch, facts.division)
    return Prediction(
        plan, compute, costs.level, facts.batch, found.terms, error, found.bytes, memory, found.staleness
    )  # fmt: skip


def family_of(plan: Plan) -> str:
    """Return the name of the plans that a measurement of this one says something about."""
    if isinstance(plan.method, SplitLayers) and plan.method.stage:
        return "gathers"  # ZeRO divides what is stored, and computes whole layers
    return FAMILIES.get(type(plan.method), "alone")


def known(plan: Plan) -> bool:
    """Whether the planner has a model of the plan's method."""
    return type(plan.method) in PREDICT


def _alone(plan: Plan, method: Alone, costs: Costs, facts: Facts) -> Estimate:
    chunk = facts.samples(plan.chunks)
    c, u = costs.compute(chunk, plan.workers, plan.threads), costs.update(plan.workers, plan.threads)
    c = Guess(c.seconds * plan.chunks, c.error)
    between = costs.between("alone", 1, plan.threads)
    terms = Terms(c.seconds, u.seconds, between=between).scaled(1 / plan.workers)
    return Estimate(terms, error_of(c, u), 0.3)


def sent(collective: Collective, workers: int, size: float) -> float:
    """Return the bytes that a worker sends in a collective, on average."""
    piece = size / collective.segments(workers)
    rounds = collective.rounds(workers)
    return sum(steps * sum(sends) * piece for steps, _, sends in rounds) / workers


def _all_reduce(plan: Plan, method: AllReduce, costs: Costs, facts: Facts) -> Estimate:
    return _exchanging(plan, method.collective, 1, plan.workers, costs, facts)


def exchange_period(method: LocalSteps) -> int:
    """Return the updates between two exchanges; more than a run has, where there is one at the end alone."""
    return method.averaging.every or 10**6


def _local_steps(plan: Plan, method: LocalSteps, costs: Costs, facts: Facts) -> Estimate:
    every, fragments = exchange_period(method), method.fragments
    found = _exchanging(plan, method.collective, every, plan.workers, costs, facts, fragments)
    hidden = method.overlap * found.terms.own * fragments / every  # as far as computing covers the exchanges
    return replace(found, terms=replace(found.terms, exchange=max(0.0, found.terms.exchange - hidden)))


def _gossip(plan: Plan, method: Gossip, costs: Costs, facts: Facts) -> Estimate:
    neighbours = min(plan.workers, 3)
    return _exchanging(plan, method.collective, max(1, method.averaging.every), neighbours, costs, facts)


def _exchanging(
    plan: Plan, collective: Collective, every: int, together: int, costs: Costs, facts: Facts, fragments: int = 1
) -> Estimate:
    """Predict workers that exchange once in `every` updates, in fragments, in which so many wait for each other."""
    workers = plan.workers
    c = costs.compute(facts.samples(workers), workers, plan.threads)
    u = costs.update(workers, plan.threads)
    m, size = _meeting(plan, collective, costs, facts, fragments)
    m = Guess(m.seconds / every, m.error)
    wait = waiting(costs, plan, together, c.seconds, max(1, every // fragments))
    between = costs.between("meeting", workers)
    terms = Terms(c.seconds, u.seconds, m.seconds, wait, between)
    return Estimate(terms, error_of(c, u), error_of(m, Guess(between + wait, 0.3)), size / every)


def _meeting(plan: Plan, collective: Collective, costs: Costs, facts: Facts, fragments: int = 1) -> tuple[Guess, float]:
    """Return the seconds of the collectives of all fragments with their codec, and the bytes that a worker sends."""
    coding = coding_of(plan, facts)
    collective, size = exchanged(plan.codec, collective, plan.workers, coding.bytes)
    parts = fragments * (2 if plan.codec is not None and plan.codec.in_two else 1)  # one after the other
    m = meeting(costs, collective, plan.workers, size / parts)
    seconds = parts * m.seconds + coding.encode + reads(plan) * coding.decode
    return Guess(seconds, m.error), sent(collective, plan.workers, size)


def _native(plan: Plan, method: NativeDdp, costs: Costs, facts: Facts) -> Estimate:
    workers = plan.workers
    c = costs.compute(facts.samples(workers), workers, plan.threads)
    u = costs.update(workers, plan.threads)
    if costs.card.exchange("ddp", workers) is None:
        raise NotMeasured("the card has no measurement of PyTorch's all-reduce; calibrate with more --seconds")
    x = meeting(costs, Ring(), workers, facts.payload, "ddp")
    wait = waiting(costs, plan, workers, c.seconds)
    between = costs.between("ddp", workers)
    terms = Terms(c.seconds, u.seconds, x.seconds, wait, between)
    return Estimate(
        terms, error_of(c, u), error_of(x, Guess(between + wait, 0.3)), sent(Ring(), workers, facts.payload)
    )


def _pipeline(plan: Plan, method: Pipeline, costs: Costs, facts: Facts) -> Estimate:
    found = pipeline(plan, method, costs, facts.batch)
    moved = facts.division.bytes if facts.division else found.bytes
    if method.spread.server is not None:
        moved += 2.0 * facts.served / plan.workers  # each stage pushes its gradient, and pulls its parameters
    return Estimate(found.terms, found.error, found.error, moved)


def _split_layers(plan: Plan, method: SplitLayers, costs: Costs, facts: Facts) -> Estimate:
    division = facts.division
    if division is None:
        raise NotMeasured("how the layers are split is known on the machine that would run them")
    workers = plan.workers
    samples = facts.samples(workers if method.stage else method.data)
    whole = costs.compute(samples, workers, plan.threads)
    c = Guess(
        whole.seconds * layers_share(costs.layers(samples, workers, plan.threads), division),
        max(whole.error, SPLIT_ERROR),
    )
    u = costs.update(workers, plan.threads)
    u = Guess(u.seconds * division.held, u.error)
    exchange = single(costs, "meeting", workers, 0.0).seconds * division.messages
    segment, found = costs.between("meeting", workers), costs.card.exchange("meeting", workers)
    if part := costs.card.exchange("part", workers):
        segment, found = part.latency, part
    if found:
        exchange += division.bytes / found.bandwidth
    # A segment of a split layer runs several operations; ZeRO gathers or scatters one tensor at a time.
    between = segment * max(1.0, GATHER * division.messages if method.stage else division.segments)
    if method.stage and workers > costs.card.cores:
        exchange, between = CROWDED_MESSAGE * exchange, segment  # the Python of one goes on while others wait
    wait = waiting(costs, plan, workers, c.seconds)
    terms = Terms(c.seconds, u.seconds, exchange, wait, between)
    return Estimate(terms, error_of(c, u), SPLIT_ERROR, division.bytes)


#: What predicts each method: called with the plan, its method, the costs and the facts.
PREDICT: dict[type, Callable[[Plan, Any, Costs, Facts], Estimate]] = {
    Alone: _alone,
    AllReduce: _all_reduce,
    LocalSteps: _local_steps,
    Gossip: _gossip,
    NativeDdp: _native,
    ParameterServer: servers.server,
    GatheringServer: servers.gathering,
    CentreServer: servers.centre,
    PairwiseGossip: servers.pairwise,
    Hogwild: servers.hogwild,
    Pipeline: _pipeline,
    SplitLayers: _split_layers,
}
