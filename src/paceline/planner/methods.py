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

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core.codecs.sizes import estimate, exchanged
from paceline.core.collectives import Collective
from paceline.core.collectives.ring import Ring
from paceline.planner import fitting
from paceline.planner.card import Overhead
from paceline.planner.costs import CROWDED_MESSAGE, Costs, Guess, meeting, single
from paceline.planner.divisions import ModelDivision, layers_share
from paceline.planner.doubt import least_doubt
from paceline.planner.memory import worker_memory
from paceline.planner.pipelines import pipeline
from paceline.planner.prediction import Prediction, Terms
from paceline.planner.queueing import queued
from paceline.plans.methods.all_reduce import AllReduce
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.local_steps import Gossip, LocalSteps
from paceline.plans.methods.native import NativeDdp
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer
from paceline.plans.methods.split_layers import SplitLayers
from paceline.plans.plan import Plan

SLICE = 3e-3  # seconds for which Linux lets a process run while another one waits for its core
GATHER = 0.7  # of a segment's Python: what a gather or a scatter of one layer's parameters takes
SPLIT_ERROR = 0.5  # of the seconds of parts of layers: smaller operations than the card was fitted on


@dataclass(frozen=True)
class Coding:
    """What a codec does to the gradient of a job."""

    #: Bytes of a message; of codecs whose messages vary, about.
    bytes: float
    #: Seconds of one processor core to write a message, and to read one.
    encode: float
    decode: float


@dataclass(frozen=True)
class Facts:
    """What the planner knows of a job besides its cost."""

    batch: int  # samples of an update
    #: Bytes of the vector that synchronous workers add up: gradients, moving buffers, loss and weight.
    payload: int
    #: Bytes of the parameters as a server keeps them.
    served: int
    #: What is known of the codecs of this job's gradients, by their names in plans.
    codecs: Mapping[str, Coding] = field(default_factory=dict)
    #: How the plan divides the model, where it does and that is known.
    division: ModelDivision | None = None


@dataclass(frozen=True)
class Found:
    """The terms of an update, and how sure they are."""

    terms: Terms
    #: Of computing and updating, as half a 90% interval, as a logarithm.
    own: float
    #: Of everything else.
    rest: float = 0.0
    bytes: float = 0.0
    staleness: float = 0.0

    @property
    def error(self) -> float:
        """Each part's error counts by its share."""
        return _error(Guess(self.terms.own, self.own), Guess(self.terms.rest, self.rest))

    def corrected(self, by: Overhead) -> Found:
        """Return the same, corrected by plans of its family that were measured."""
        if not by.error:
            return self
        if by.family in DIVIDED:
            return replace(self, terms=self.terms.scaled(by.factor), own=by.error, rest=by.error)
        terms = self.terms
        more = (terms.exchange * by.factor, terms.wait * by.factor, terms.between * by.factor)
        return replace(self, terms=Terms(terms.compute, terms.update, *more), rest=by.error)


#: What plans have in common besides computing and updating.
FAMILIES: dict[type, str] = {
    AllReduce: "meeting", LocalSteps: "meeting", Gossip: "meeting", NativeDdp: "ddp", ParameterServer: "push",
    GatheringServer: "push", CentreServer: "push", PairwiseGossip: "push", Hogwild: "push", Pipeline: "stages",
    SplitLayers: "parts",
}  # fmt: skip

#: Families whose workers compute parts of the model: measurements correct all their terms, not only what is besides.
DIVIDED = ("stages", "parts")
FACTORS = 0.05, 20.0  # of an overhead
ANCHORED = 0.35  # error of an overhead that was measured with another plan of the family


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


def _share(plan: Plan, facts: Facts, parts: int) -> int:
    return math.ceil(facts.batch / parts)


def _waiting(costs: Costs, plan: Plan, workers: int, compute: float, steps: int = 1) -> float:
    """The seconds that one of so many workers waits for the slowest, each having computed so many steps."""
    jitter = costs.jitter(plan.workers, plan.threads)
    slowest = fitting.mean_of_largest(jitter, workers) / fitting.mean_of_largest(jitter, 1) - 1.0
    return compute * (slowest / math.sqrt(steps) + crowded(plan, costs.card.cores, compute * steps))


def crowded(plan: Plan, cores: int, seconds: float) -> float:
    """How much longer the last of more workers than cores takes than if they shared the cores evenly.

    The scheduler of the kernel changes workers after a slice of time. Shorter steps run one after the other: of three
    workers on two cores, one begins when another one has ended.
    """
    turns = plan.workers * plan.threads / cores
    if turns <= 1:
        return 0.0
    return (math.ceil(turns) / turns - 1.0) * min(1.0, SLICE * turns / max(seconds, 1e-9))


def _error(*parts: Guess) -> float:
    """The error of a sum: each part's error counts by its share."""
    whole = sum(part.seconds for part in parts)
    return math.sqrt(sum((part.error * part.seconds) ** 2 for part in parts)) / max(whole, 1e-12)


def _alone(plan: Plan, method: Alone, costs: Costs, facts: Facts) -> Found:
    chunk = _share(plan, facts, plan.chunks)
    c, u = costs.compute(chunk, plan.workers, plan.threads), costs.update(plan.workers, plan.threads)
    c = Guess(c.seconds * plan.chunks, c.error)
    between = costs.between("alone", 1, plan.threads)
    terms = Terms(c.seconds, u.seconds, between=between).scaled(1 / plan.workers)
    return Found(terms, _error(c, u), 0.3)


def sent(collective: Collective, workers: int, size: float) -> float:
    """Return the bytes that a worker sends in a collective, on average."""
    piece = size / collective.segments(workers)
    rounds = collective.rounds(workers)
    return sum(steps * sum(sends) * piece for steps, _, sends in rounds) / workers


def _all_reduce(plan: Plan, method: AllReduce, costs: Costs, facts: Facts) -> Found:
    return _met(plan, method.collective, 1, plan.workers, costs, facts)


def exchange_period(method: LocalSteps) -> int:
    """Return the updates between two exchanges; more than a run has, where there is one at the end alone."""
    return method.averaging.every or 10**6


def _local_steps(plan: Plan, method: LocalSteps, costs: Costs, facts: Facts) -> Found:
    every, fragments = exchange_period(method), method.fragments
    found = _met(plan, method.collective, every, plan.workers, costs, facts, fragments)
    hidden = method.overlap * found.terms.own * fragments / every  # as far as computing covers the exchanges
    return replace(found, terms=replace(found.terms, exchange=max(0.0, found.terms.exchange - hidden)))


def _gossip(plan: Plan, method: Gossip, costs: Costs, facts: Facts) -> Found:
    neighbours = min(plan.workers, 3)
    return _met(plan, method.collective, max(1, method.averaging.every), neighbours, costs, facts)


def _met(
    plan: Plan, collective: Collective, every: int, together: int, costs: Costs, facts: Facts, fragments: int = 1
) -> Found:
    """Predict workers that exchange once in `every` updates, in fragments, in which so many wait for each other."""
    workers = plan.workers
    c = costs.compute(_share(plan, facts, workers), workers, plan.threads)
    u = costs.update(workers, plan.threads)
    m, size = _meeting(plan, collective, costs, facts, fragments)
    m = Guess(m.seconds / every, m.error)
    wait = _waiting(costs, plan, together, c.seconds, max(1, every // fragments))
    between = costs.between("meeting", workers)
    terms = Terms(c.seconds, u.seconds, m.seconds, wait, between)
    return Found(terms, _error(c, u), _error(m, Guess(between + wait, 0.3)), size / every)


def _meeting(plan: Plan, collective: Collective, costs: Costs, facts: Facts, fragments: int = 1) -> tuple[Guess, float]:
    """Return the seconds of the collectives of all fragments with their codec, and the bytes that a worker sends."""
    coding = coding_of(plan, facts)
    collective, size = exchanged(plan.codec, collective, plan.workers, coding.bytes)
    parts = fragments * (2 if plan.codec is not None and plan.codec.in_two else 1)  # one after the other
    m = meeting(costs, collective, plan.workers, size / parts)
    seconds = parts * m.seconds + coding.encode + reads(plan) * coding.decode
    return Guess(seconds, m.error), sent(collective, plan.workers, size)


def coding_of(plan: Plan, facts: Facts) -> Coding:
    """Return what the codec does; of one that was not measured, its bytes as far as they follow from the model."""
    dense = facts.payload if plan.traits.keeps_step else facts.served
    if plan.codec is None:
        return Coding(dense, 0.0, 0.0)
    return facts.codecs.get(str(plan.options["codec"])) or Coding(estimate(plan.codec, dense), 0.0, 0.0)


def answer_of(plan: Plan, facts: Facts) -> Coding:
    """Return what a server does to its answers; of a codec that was not measured, about its bytes."""
    if plan.pull is None:
        return Coding(facts.served, 0.0, 0.0)
    return facts.codecs.get(str(plan.options["pull"])) or Coding(estimate(plan.pull, facts.served), 0.0, 0.0)


def reads(plan: Plan) -> int:
    """Return how many messages are read for an update: one of each worker where they are gathered."""
    gathered = plan.codec is not None and not plan.codec.adds and plan.traits.keeps_step
    return plan.workers if gathered else 1


def _native(plan: Plan, method: NativeDdp, costs: Costs, facts: Facts) -> Found:
    workers = plan.workers
    c = costs.compute(_share(plan, facts, workers), workers, plan.threads)
    u = costs.update(workers, plan.threads)
    if costs.card.exchange("ddp", workers) is None:
        raise NotMeasured("the card has no measurement of PyTorch's all-reduce; calibrate with more --seconds")
    x = meeting(costs, Ring(), workers, facts.payload, "ddp")
    wait = _waiting(costs, plan, workers, c.seconds)
    between = costs.between("ddp", workers)
    terms = Terms(c.seconds, u.seconds, x.seconds, wait, between)
    return Found(terms, _error(c, u), _error(x, Guess(between + wait, 0.3)), sent(Ring(), workers, facts.payload))


class NotMeasured(Exception):
    """The card lacks what a prediction needs; the message says what."""


# --- servers ---


def _server(plan: Plan, method: ParameterServer, costs: Costs, facts: Facts) -> Found:
    workers = plan.workers
    c = costs.compute(_share(plan, facts, 1), workers, plan.threads)
    coding = coding_of(plan, facts)
    back = answer_of(plan, facts)
    moved = coding.bytes + back.bytes
    # The price of a push is that of as many bytes both ways.
    u, p = costs.update(workers, plan.threads), single(costs, "push", workers, moved / 2)
    # A server also reads what it answers, so that it knows what the worker has.
    p = Guess(p.seconds + coding.decode + back.encode + back.decode, p.error)
    c = Guess(c.seconds + coding.encode + back.decode, c.error)
    between = costs.between("push", workers)
    # More workers than cores take turns, but one that holds the lock has its core.
    turns = max(1.0, workers * plan.threads / costs.card.cores)
    rate, _ = queued(workers, c.seconds / turns + between, (u.seconds / turns + p.seconds) / method.shards)
    work = (c.seconds + u.seconds) / turns + between + p.seconds
    each = workers / min(rate, workers / turns / work)  # of one worker, from push to push
    wait = max(0.0, each - c.seconds - u.seconds - p.seconds - between)
    terms = Terms(c.seconds, u.seconds, p.seconds, wait, between).scaled(1 / workers)
    return Found(terms, _error(c, u), _error(p, Guess(between + wait, 0.3)), moved / workers, workers - 1.0)


def _gathering(plan: Plan, method: GatheringServer, costs: Costs, facts: Facts) -> Found:
    needed, workers = method.gathers, plan.workers
    c = costs.compute(_share(plan, facts, needed), workers, plan.threads)
    u, p = costs.update(workers, plan.threads), single(costs, "push", workers, facts.served)
    p = Guess(p.seconds * needed, p.error)
    between = costs.between("push", workers)
    wait = _waiting(costs, plan, needed, c.seconds)
    terms = Terms(c.seconds, u.seconds, p.seconds, wait, between)
    return Found(terms, _error(c, u), _error(p, Guess(between + wait, 0.3)), 2.0 * facts.served * needed / workers)


def _centre(plan: Plan, method: CentreServer, costs: Costs, facts: Facts) -> Found:
    workers, every = plan.workers, max(1, method.exchange.every)
    c = costs.compute(_share(plan, facts, 1), workers, plan.threads)
    u, p = costs.update(workers, plan.threads), single(costs, "push", workers, facts.served)
    between = costs.between("push", workers)
    think = (c.seconds + u.seconds + between) * every
    rate, wait = queued(workers, think, p.seconds)
    terms = Terms(c.seconds, u.seconds, p.seconds / every, wait / every, between)
    terms = terms.scaled(1 / rate / every / terms.whole)
    return Found(
        terms,
        _error(c, u),
        _error(p, Guess(between + wait / every, 0.3)),
        2.0 * facts.served / every / workers,
        workers - 1.0,
    )


def _pairwise(plan: Plan, method: PairwiseGossip, costs: Costs, facts: Facts) -> Found:
    workers = plan.workers
    c = costs.compute(_share(plan, facts, 1), workers, plan.threads)
    u, p = costs.update(workers, plan.threads), single(costs, "push", workers, facts.served)
    between = costs.between("push", workers)
    terms = Terms(c.seconds, u.seconds, p.seconds, between=between).scaled(1 / workers)
    return Found(terms, _error(c, u), _error(p, Guess(between, 0.3)), 2.0 * facts.served / workers, workers - 1.0)


def _hogwild(plan: Plan, method: Hogwild, costs: Costs, facts: Facts) -> Found:
    workers = plan.workers
    c, u = costs.compute(_share(plan, facts, 1), workers, plan.threads), costs.update(workers, plan.threads)
    p, between = single(costs, "push", workers, facts.served), costs.between("push", workers)
    terms = Terms(c.seconds, u.seconds, p.seconds, between=between).scaled(1 / workers)
    # Nothing is sent: all write into one memory.
    return Found(terms, _error(c, u), _error(p, Guess(between, 0.3)), 0.0, workers - 1.0)


def _pipeline(plan: Plan, method: Pipeline, costs: Costs, facts: Facts) -> Found:
    found = pipeline(plan, method, costs, facts.batch)
    moved = facts.division.bytes if facts.division else found.bytes
    if method.spread.server is not None:
        moved += 2.0 * facts.served / plan.workers  # each stage pushes its gradient, and pulls its parameters
    return Found(found.terms, found.error, found.error, moved)


def _split_layers(plan: Plan, method: SplitLayers, costs: Costs, facts: Facts) -> Found:
    division = facts.division
    if division is None:
        raise NotMeasured("how the layers are split is known on the machine that would run them")
    workers = plan.workers
    samples = _share(plan, facts, workers if method.stage else method.data)
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
    wait = _waiting(costs, plan, workers, c.seconds)
    terms = Terms(c.seconds, u.seconds, exchange, wait, between)
    return Found(terms, _error(c, u), SPLIT_ERROR, division.bytes)


#: What predicts each method: called with the plan, its method, the costs and the facts.
PREDICT: dict[type, Callable[[Plan, Any, Costs, Facts], Found]] = {
    Alone: _alone,
    AllReduce: _all_reduce,
    LocalSteps: _local_steps,
    Gossip: _gossip,
    NativeDdp: _native,
    ParameterServer: _server,
    GatheringServer: _gathering,
    CentreServer: _centre,
    PairwiseGossip: _pairwise,
    Hogwild: _hogwild,
    Pipeline: _pipeline,
    SplitLayers: _split_layers,
}
