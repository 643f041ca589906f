"""The seconds of the parts of a step, at three levels of truth.

    card         two figures of a data sheet
    calibrated   coefficients that were fitted on this machine, and the operations of this model
    profiled     also a few real steps of this very model: its own seconds take the place of the fitted ones

Each part says how far it may be off: half its 90% interval, as a logarithm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from paceline.core.collectives import Collective
from paceline.planner import fitting
from paceline.planner.card import Card
from paceline.planner.heap import replica_bytes
from paceline.planner.model_cost import ModelCost
from paceline.planner.operations import BACKWARD, FORWARD, UPDATE, Operation, figures, seconds

ANCHOR = 0.35  # error of an exchange that was measured with this very model
PROFILED = 0.15  # error of a part that was measured with this very model
SCALES = 0.3, 4.0  # of memory measured over predicted; workers of a few KiB are not measured well
SPEED_LIMITS = 0.4, 2.5  # of an exchange measured over predicted; more is a busy machine and not the model


class Guess(NamedTuple):
    """Seconds, and half their 90% interval as a logarithm."""

    seconds: float
    error: float


class LayerSeconds(NamedTuple):
    """What a card says of the operations of one module."""

    forward: float
    backward: float
    #: Bytes of what it returns.
    made: float


class Costs(Protocol):
    """The seconds of the parts of a step of one job on one machine."""

    @property
    def level(self) -> str:
        """card, calibrated or profiled."""

    @property
    def card(self) -> Card: ...

    def cost(self, samples: int) -> ModelCost:
        """What a step with so many samples costs."""

    def compute(self, samples: int, busy: int, threads: int) -> Guess:
        """The mean seconds of one gradient while so many workers compute at once."""

    def update(self, busy: int, threads: int) -> Guess:
        """The seconds of the optimizer's update of all parameters."""

    def layers(self, samples: int, busy: int, threads: int) -> Mapping[str, LayerSeconds]:
        """The seconds of each module, in the order of their first calls; "" has what is outside of modules."""

    def jitter(self, busy: int, threads: int) -> tuple[float, ...]:
        """Quantiles of a gradient's seconds over their median."""

    def heap(self, samples: int) -> float:
        """How many times as many bytes a worker of this model takes as the formula says; 1 where none was measured."""

    def between(self, kind: str, workers: int) -> float:
        """The seconds of Python in each update besides."""

    def factor(self, kind: str) -> Guess:
        """How many times as long as the card says exchanges of this kind take for this model."""


@dataclass
class Calibrated:
    """Predicts by a card and the operations of the model. `costs` runs the model in fake mode; its answers are kept."""

    card: Card
    costs: Callable[[int], ModelCost]
    _known: dict[int, ModelCost] = field(default_factory=dict)
    _layers: dict[tuple[int, int, int], Mapping[str, LayerSeconds]] = field(default_factory=dict)

    @property
    def level(self) -> str:
        return self.card.level

    def cost(self, samples: int) -> ModelCost:
        if samples not in self._known:
            self._known[samples] = self.costs(samples)
        return self._known[samples]

    def compute(self, samples: int, busy: int, threads: int) -> Guess:
        operations, turns = self.card.fit(busy, threads)
        once = seconds(operations.compute, self.cost(samples).figures(FORWARD, BACKWARD))
        mean = fitting.mean_of_largest(operations.jitter, 1)
        return Guess(once * turns * mean * self.card.slowness, operations.error)

    def update(self, busy: int, threads: int) -> Guess:
        operations, turns = self.card.fit(busy, threads)
        known = next(iter(self._known), 1)
        once = seconds(operations.update, self.cost(known).figures(UPDATE))
        return Guess(once * turns * self.card.slowness, operations.error)

    def layers(self, samples: int, busy: int, threads: int) -> Mapping[str, LayerSeconds]:
        case = samples, busy, threads
        if case not in self._layers:
            self._layers[case] = _by_module(self.cost(samples), self.card.fit(busy, threads)[0].compute)
        return self._layers[case]

    def jitter(self, busy: int, threads: int) -> tuple[float, ...]:
        return self.card.fit(busy, threads)[0].jitter

    def heap(self, samples: int) -> float:
        return 1.0

    def between(self, kind: str, workers: int) -> float:
        found = self.card.exchange(kind, workers)
        return (found.between if found else self.card.between) * self.card.slowness

    def factor(self, kind: str) -> Guess:
        return Guess(1.0, 0.0)


@dataclass(frozen=True)
class Profile:
    """Real steps of a model by workers that never communicate."""

    busy: int
    threads: int
    samples: int
    #: Seconds of each gradient.
    compute: tuple[float, ...]
    #: Seconds of each update.
    update: tuple[float, ...]
    #: Seconds of Python between them.
    between: float
    #: The most bytes of a worker; 0 where the kernel does not say.
    memory: int = 0


@dataclass
class Profiled:
    """Predicts by real steps of the model; what was not measured is scaled from them by the calibrated prediction."""

    base: Costs
    profiles: Sequence[Profile]
    #: Exchanges measured over predicted, by kind.
    factors: dict[str, float] = field(default_factory=dict)
    level: str = "profiled"

    @property
    def card(self) -> Card:
        return self.base.card

    def cost(self, samples: int) -> ModelCost:
        return self.base.cost(samples)

    def compute(self, samples: int, busy: int, threads: int) -> Guess:
        near = self._near(busy, threads)
        if not near:
            return self.base.compute(samples, busy, threads)
        turns = self._turns(busy, threads, near[0])
        exact = [p for p in near if p.samples == samples]
        if exact:
            return Guess(_mean(_trimmed(exact[0].compute)) * turns, PROFILED if turns == 1 else 2 * PROFILED)
        points = sorted((p.samples, _mean(_trimmed(p.compute))) for p in near)
        if len(points) > 1 and points[0][0] < samples < points[-1][0]:
            return Guess(_between(points, samples) * turns, 1.5 * PROFILED)
        nearest = min(near, key=lambda p: abs(math.log(p.samples / samples)))
        here = self.base.compute(nearest.samples, nearest.busy, nearest.threads).seconds
        there = self.base.compute(samples, nearest.busy, nearest.threads).seconds
        return Guess(_mean(_trimmed(nearest.compute)) * there / max(here, 1e-9) * turns, 2 * PROFILED)

    def update(self, busy: int, threads: int) -> Guess:
        near = self._near(busy, threads)
        if not near:
            return self.base.update(busy, threads)
        turns = self._turns(busy, threads, near[0])
        return Guess(_mean([_mean(_trimmed(p.update)) for p in near]) * turns, PROFILED)

    def layers(self, samples: int, busy: int, threads: int) -> Mapping[str, LayerSeconds]:
        return self.base.layers(samples, busy, threads)

    def jitter(self, busy: int, threads: int) -> tuple[float, ...]:
        near = self._near(busy, threads)
        pooled = [t / q for p in near for q in [_median(p.compute)] for t in p.compute]
        return fitting.quantiles(pooled) if len(pooled) >= 20 else self.base.jitter(busy, threads)

    def heap(self, samples: int) -> float:
        measured = [p for p in self.profiles if p.memory and p.threads == 1]
        if not measured:
            return self.base.heap(samples)
        nearest = min(abs(math.log(p.samples / samples)) for p in measured)
        ratios = [
            p.memory / replica_bytes(self.cost(p.samples), "alone")
            for p in measured
            if abs(math.log(p.samples / samples)) == nearest
        ]
        return min(SCALES[1], max(SCALES[0], _mean(ratios)))

    def between(self, kind: str, workers: int) -> float:
        alone = [p.between for p in self._near(1, 1)]
        more = max(0.0, self.base.between(kind, workers) - self.card.between)
        return (_mean(alone) + more) if alone else self.base.between(kind, workers)

    def factor(self, kind: str) -> Guess:
        return Guess(self.factors[kind], ANCHOR) if kind in self.factors else self.base.factor(kind)

    def _near(self, busy: int, threads: int) -> list[Profile]:
        """The profiles of as many busy workers, or of as many as there are cores where there are more."""
        most = max(1, self.card.cores // threads)
        same = [p for p in self.profiles if p.threads == threads]
        exact = [p for p in same if p.busy == min(busy, most)]
        if exact or not same:
            return exact
        nearest = min(abs(p.busy - min(busy, most)) for p in same)
        return [p for p in same if abs(p.busy - min(busy, most)) == nearest]

    def _turns(self, busy: int, threads: int, measured: Profile) -> float:
        """How many times as long a worker takes because there are fewer cores than threads."""
        cores = self.card.cores
        return max(1.0, busy * threads / cores) / max(1.0, measured.busy * measured.threads / cores)


def _by_module(cost: ModelCost, coefficients: Mapping[str, float]) -> dict[str, LayerSeconds]:
    """Add up the seconds of each module's operations."""
    by_module: dict[str, list[Operation]] = {}
    for op in cost.operations:
        if op.phase != UPDATE:
            by_module.setdefault(op.module, []).append(op)
    found = {}
    for name, mine in by_module.items():
        forward = seconds(coefficients, figures(op for op in mine if op.phase == FORWARD))
        backward = seconds(coefficients, figures(op for op in mine if op.phase == BACKWARD))
        made = next((op.made for op in reversed(mine) if op.phase == FORWARD and op.made), 0.0)
        found[name] = LayerSeconds(forward, backward, made)
    return found


def anchored(measured: float, predicted: float) -> float:
    """Return a factor for exchanges, of one that was measured with this model."""
    low, high = SPEED_LIMITS
    return min(high, max(low, measured / max(predicted, 1e-9)))


def meeting(costs: Costs, collective: Collective, workers: int, size: float) -> Guess:
    """Return the seconds of a collective over so many bytes, by its closed form."""
    found = costs.card.exchange("meeting", workers)
    if found is None or workers == 1:
        return Guess(0.0, 0.0)
    factor = costs.factor("meeting")
    once = collective.seconds(workers, size, found.latency, found.bandwidth)
    return Guess(once * factor.seconds, factor.error or found.error)


def single(costs: Costs, kind: str, workers: int, size: float) -> Guess:
    """Return the seconds of a push, a message or another exchange of so many bytes."""
    found = costs.card.exchange(kind, workers)
    if found is None:
        return Guess(0.0, 0.0)
    factor = costs.factor(kind)
    return Guess((found.latency + size / found.bandwidth) * factor.seconds, factor.error or found.error)


def _between(points: Sequence[tuple[int, float]], samples: int) -> float:
    """Interpolate linearly."""
    for (low, first), (high, last) in itertools.pairwise(points):
        if low <= samples <= high:
            return first + (last - first) * (samples - low) / (high - low)
    raise AssertionError("the caller has checked that it lies between")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _trimmed(values: Sequence[float]) -> list[float]:
    """The values without the largest fifth, which other programs on the machine have made."""
    ordered = sorted(values)
    return ordered[: max(1, len(ordered) - len(ordered) // 5)]
