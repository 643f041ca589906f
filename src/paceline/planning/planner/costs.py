"""The seconds of the parts of a step, at three levels of truth.

    card         two figures of a data sheet
    calibrated   coefficients that were fitted on this machine, and the operations of this model
    profiled     also a few real steps of this very model: its own seconds take the place of the fitted ones

Each part says how far it may be off: half its 90% interval, as a logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from paceline.algorithms.collectives import Collective
from paceline.planning.planner import fitting
from paceline.planning.planner.card import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Card,
    DispatchedCall,
    ExchangeSeconds,
    Overhead,
    figures,
    seconds,
)
from paceline.planning.planner.model_cost import ModelCost
from paceline.plans.methods.prediction import Guess


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

    @property
    def tensors(self) -> int:
        """How many tensors of the model are trained."""

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

    def heap(self, samples: int, how: str) -> float:
        """How many times as many bytes a worker of this model takes as the formula says; 1 where none was measured."""

    def between(self, kind: str, workers: int, threads: int = 1) -> float:
        """The seconds of Python in each update besides."""

    def overhead(self, family: str, workers: int) -> Overhead:
        """How many times as long as predicted plans of this family take besides computing and updating."""


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

    @property
    def tensors(self) -> int:
        return next((each.tensors for each in self._known.values()), 1)

    def compute(self, samples: int, busy: int, threads: int) -> Guess:
        operations, turns = self.card.fit(busy, threads)
        once = seconds(operations.compute, self.cost(samples).figures(FORWARD, BACKWARD))
        mean = fitting.mean_of_largest(operations.jitter, 1)
        return Guess(once * turns * mean * self.card.slowness, operations.error)

    def update(self, busy: int, threads: int) -> Guess:
        operations, turns = self.card.fit(busy, threads)
        samples = next(iter(self._known), 1)
        once = seconds(operations.update, self.cost(samples).figures(UPDATE))
        return Guess(once * turns * self.card.slowness, operations.error)

    def layers(self, samples: int, busy: int, threads: int) -> Mapping[str, LayerSeconds]:
        case = samples, busy, threads
        if case not in self._layers:
            self._layers[case] = _by_module(self.cost(samples), self.card.fit(busy, threads)[0].compute)
        return self._layers[case]

    def jitter(self, busy: int, threads: int) -> tuple[float, ...]:
        return self.card.fit(busy, threads)[0].jitter

    def heap(self, samples: int, how: str) -> float:
        return 1.0

    def between(self, kind: str, workers: int, threads: int = 1) -> float:
        exchange = self.card.exchange(kind, workers)
        return (exchange.between if exchange else self.card.between) * self.card.slowness

    def overhead(self, family: str, workers: int) -> Overhead:
        return Overhead.nearest(self.card.overheads, family, workers) or Overhead(family, workers, 1.0, 0.0)


def _by_module(cost: ModelCost, coefficients: Mapping[str, float]) -> dict[str, LayerSeconds]:
    """Add up the seconds of each module's operations."""
    by_module: dict[str, list[DispatchedCall]] = {}
    for op in cost.operations:
        if op.phase != UPDATE:
            by_module.setdefault(op.module, []).append(op)
    layers = {}
    for name, mine in by_module.items():
        forward = seconds(coefficients, figures(op for op in mine if op.phase == FORWARD))
        backward = seconds(coefficients, figures(op for op in mine if op.phase == BACKWARD))
        output_bytes = next((op.made for op in reversed(mine) if op.phase == FORWARD and op.made), 0.0)
        layers[name] = LayerSeconds(forward, backward, output_bytes)
    return layers


def meeting(costs: Costs, collective: Collective, workers: int, size: float, kind: str = "meeting") -> Guess:
    """Return the seconds of a collective over so many bytes, by its closed form."""
    exchange = costs.card.exchange(kind, workers)
    if exchange is None or workers == 1:
        return Guess(0.0, 0.0)
    latency, bandwidth = exchange.at(size / collective.segments(workers))
    return Guess(collective.seconds(workers, size, latency, bandwidth) + _tensors(costs, exchange), exchange.error)


def single(costs: Costs, kind: str, workers: int, size: float) -> Guess:
    """Return the seconds of a push, a message or another exchange of so many bytes."""
    exchange = costs.card.exchange(kind, workers)
    if exchange is None:
        return Guess(0.0, 0.0)
    latency, bandwidth = exchange.at(size)
    return Guess(latency + size / bandwidth + _tensors(costs, exchange), exchange.error)


def _tensors(costs: Costs, exchange: ExchangeSeconds) -> float:
    """Return what the tensors of the model besides the first add to an exchange."""
    return exchange.tensor * max(0, costs.tensors - 1)
