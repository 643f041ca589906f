"""What a method predicts of an update: its seconds, of the seconds of its parts, which the planner knows (`Prices`).

P workers, a batch of n samples. J(P) is the mean of the slowest of P workers over the mean of one.

    Alone             compute(n) + update                                   / P where there are several
    AllReduce         compute(n/P) J(P) + table's closed form + update
    LocalSteps        compute(n/P) + update + (fragments x closed form of one + waiting) / every
    Gossip            compute(n/P) J(2) + exchange with neighbours + update
    ParameterServer   a closed queueing network: P workers who compute, one shard that serves one push at a time
    Hogwild           (compute(n) + update) / P
    Pipeline          its table on the clock
    NativeDdp         compute(n/P) J(P) + PyTorch's all-reduce + update
    SplitLayers       compute of each layer, 1/P of it where it is split + its movements + update of the parts
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

from paceline.algorithms.collectives import Collective
from paceline.algorithms.schedules import Table

DOUBT = 0.3  # error of what lies between the parts of an update, and of waiting
#: Of the seconds of a message between more workers than cores that follow each other at once: workers that have
#: something to compute between two messages wait for less of it.
CROWDED_MESSAGE = 0.75


class NotPredicted(Exception):
    """The planner has no model of a method, or a card lacks what its prediction needs; the message says what."""


class Guess(NamedTuple):
    """Seconds, and half their 90% interval as a logarithm."""

    seconds: float
    error: float


@dataclass(frozen=True)
class Coding:
    """A message between workers, or to and from a server, and what a codec does to it."""

    #: Bytes of a message; of codecs whose messages vary, about.
    bytes: float
    #: Seconds of one processor core to write a message, and to read one.
    encode: float
    decode: float


@dataclass(frozen=True)
class Terms:
    """The parts of the seconds of an update, averaged over workers."""

    compute: float
    update: float
    exchange: float = 0.0
    #: Waiting for slower workers, for the lock of a shard, or for another stage.
    wait: float = 0.0
    #: Python between them.
    between: float = 0.0

    @property
    def whole(self) -> float:
        return self.compute + self.update + self.exchange + self.wait + self.between

    @property
    def own(self) -> float:
        """What a worker does that never communicates: computing and updating."""
        return self.compute + self.update

    @property
    def rest(self) -> float:
        return self.exchange + self.wait + self.between

    def scaled(self, factor: float) -> Terms:
        return Terms(*(value * factor for value in asdict(self).values()))


@dataclass(frozen=True)
class Estimate:
    """The terms of an update, and how sure they are."""

    terms: Terms
    #: The error of computing and updating: half a 90% interval, as a logarithm.
    own: float
    #: The error of everything else.
    rest: float = 0.0
    #: Bytes that a worker sends.
    bytes: float = 0.0
    staleness: float = 0.0

    @property
    def error(self) -> float:
        """The error of the whole, to which each part adds by its share."""
        return error_of(Guess(self.terms.own, self.own), Guess(self.terms.rest, self.rest))


def error_of(*parts: Guess) -> float:
    """Return the error of a sum, to which each part adds by its share."""
    total = sum(part.seconds for part in parts)
    return math.sqrt(sum((part.error * part.seconds) ** 2 for part in parts)) / max(total, 1e-12)


class Share(NamedTuple):
    """What a worker does with its parts of layers, on average."""

    #: Of the seconds of computing the whole model, and of the bytes of its parameters.
    computed: float
    held: float
    #: Messages that it sends, their bytes, and pieces of computation between them.
    messages: int
    bytes: float
    segments: int


class Weights(Protocol):
    """The bytes of a model and of what a step with a batch makes."""

    @property
    def parameter_bytes(self) -> int: ...

    @property
    def state_bytes(self) -> int: ...

    @property
    def activation_bytes(self) -> int: ...

    @property
    def peak_bytes(self) -> int: ...

    @property
    def batch_bytes(self) -> int: ...


class Prices(Protocol):
    """What a prediction asks of the planner: the seconds of the parts of an update of one job, by one plan.

    The kinds of exchanges are "meeting", "push", "ddp", "part" and "alone".
    """

    @property
    def workers(self) -> int: ...

    @property
    def chunks(self) -> int: ...

    @property
    def threads(self) -> int: ...

    @property
    def cores(self) -> int: ...

    @property
    def payload(self) -> int:
        """The bytes of the vector that workers add up."""

    @property
    def served(self) -> int:
        """The bytes of the parameters as a server keeps them."""

    def samples(self, parts: int) -> int:
        """Return the samples of the largest of so many parts of a batch."""

    def compute(self, samples: int) -> Guess:
        """Return the seconds of one gradient while all workers compute."""

    def update(self) -> Guess:
        """Return the seconds of the optimizer's step."""

    def between(self, kind: str) -> float:
        """Return the seconds of Python between two exchanges of a kind."""

    def one(self, kind: str, size: float) -> Guess:
        """Return the seconds of one push or message of so many bytes."""

    def whole(self, kind: str, collective: Collective, size: float) -> Guess:
        """Return the seconds of a collective; raise `NotPredicted` where the kind was not measured."""

    def coded(self, collective: Collective, fragments: int) -> tuple[Guess, float]:
        """Return the seconds of the collectives of all fragments with their codec, and the bytes of a worker."""

    def pushed(self) -> Coding:
        """Return what leaves a worker for a server."""

    def answered(self) -> Coding:
        """Return what a server answers."""

    def waiting(self, together: int, compute: float, steps: int = 1) -> float:
        """Return how long a worker waits, in each step, for the slowest of those it meets once in `steps` steps."""

    def on_clock(self, table: Table, micro_batches: int, updates: int, again: Collection[int]) -> Estimate:
        """Put the table of a pipeline on the clock; stages named in `again` compute their activations twice."""

    def division_bytes(self) -> float | None:
        """Return the bytes that a worker with a stage sends, where the model was cut to count them."""

    def share(self, samples: int) -> Share:
        """Return what a worker does with its parts of layers; raise `NotPredicted` where that is not known."""

    def link(self) -> tuple[float, float, float]:
        """Return the seconds of a message, those of a segment's Python, and the bytes per second of parts of layers."""


def sent(collective: Collective, workers: int, size: float) -> float:
    """Return the bytes that a worker sends in a collective, on average."""
    piece = size / collective.segments(workers)
    rounds = collective.rounds(workers)
    return sum(steps * sum(sends) * piece for steps, _, sends in rounds) / workers


def meetings(prices: Prices, collective: Collective, every: int, together: int, fragments: int = 1) -> Estimate:
    """Predict workers that exchange once in `every` updates, in fragments, in which so many wait for each other."""
    c, u = prices.compute(prices.samples(prices.workers)), prices.update()
    m, size = prices.coded(collective, fragments)
    m = Guess(m.seconds / every, m.error)
    wait = prices.waiting(together, c.seconds, max(1, every // fragments))
    between = prices.between("meeting")
    terms = Terms(c.seconds, u.seconds, m.seconds, wait, between)
    return Estimate(terms, error_of(c, u), error_of(m, Guess(between + wait, DOUBT)), size / every)


def queued(workers: int, think: float, serve: float) -> tuple[float, float]:
    """Return pushes per second and the mean wait of a push before it is served, by mean value analysis.

    Workers think (compute), then queue for one server. Service times are taken to be between constant and exponential:
    half of the work under way is left when a push arrives.
    """
    queue, busy, rate, wait = 0.0, 0.0, 0.0, 0.0
    for count in range(1, workers + 1):
        wait = serve * (queue - busy / 2) if count > 1 else 0.0
        rate = min(count / (think + wait + serve), 1 / serve)
        queue = rate * (wait + serve)
        busy = min(1.0, rate * serve)
    return rate, wait
