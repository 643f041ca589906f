"""Searches over configurations, as pure machines: samplers say which are tried, schedulers how long each is trained.

Losses are told in the order in which they arrived, and chance comes in as a seed, so a machine that is told the same
again decides the same again: this is how a journal is replayed.

    samplers    grid, random and sobol, in this file
    schedulers  fifo, successive_halving, asha, hyperband, median_stopping; pbt is a file of its own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from paceline.algorithms.chance import mix

#: A configuration as a point of the unit cube: a number from 0 to 1 for each parameter of the space.
Coordinates = tuple[float, ...]
#: The loss of a trial that failed; it loses against every other.
FAILED = float("inf")


@dataclass(frozen=True)
class TrialSegment:
    """A piece of a trial that is trained in one go: from step `start` to step `stop`."""

    trial: int
    start: int
    stop: int
    #: The trial whose state at `start` it begins from, where that is another one.
    source: int | None = None
    #: The configuration from here on, where the scheduler has changed it.
    coordinates: Coordinates | None = None


class Sampler(Protocol):
    """Proposes configurations by number; the same number always gives the same one."""

    def coordinates(self, number: int) -> Coordinates | None:
        """Return configuration `number`, or None if there are not so many."""


class Scheduler(Protocol):
    """Decides which trial is trained next and for how long. Losses are minimised.

    Each leg that `next` returned is followed by any number of `report`s and by one `end`.
    """

    #: Whether a trial may go on in a later leg, so that its state has to be saved at the end of each.
    resumes: bool
    #: The step at which a trial is trained to the end.
    max_t: int
    #: The steps within a leg after which it decides by a trial's loss, if it learns it; None: all.
    heeds: frozenset[int] | None

    def next(self) -> TrialSegment | None:
        """Return the leg to be trained next, or None if nothing can begin before a leg under way has ended."""

    def report(self, trial: int, step: int, loss: float) -> bool:
        """Take the loss of a trial after a step; return whether the trial is to be stopped."""

    def end(self, trial: int, step: int, loss: float) -> None:
        """Take the last loss of a leg: at its end, where it was stopped, or `FAILED`."""


def rungs(grace_period: int, max_t: int, reduction_factor: int) -> list[int]:
    """Return the steps at which trials are compared: grace_period x reduction_factor^k, below max_t."""
    steps, step = [], grace_period
    while step < max_t:
        steps.append(step)
        step *= reduction_factor
    return steps


class Grid:
    """Grid search: every combination of the values of each axis, exactly once.

    The last axis changes fastest, as in nested loops over the axes in their order.

    The product of the axes, each a list of coordinates.
    """

    def __init__(self, axes: Sequence[Sequence[float]]) -> None:
        self.axes = axes

    def __len__(self) -> int:
        return prod(len(axis) for axis in self.axes)

    def coordinates(self, number: int) -> Coordinates | None:
        if number >= len(self):
            return None
        point = []
        for axis in reversed(self.axes):
            number, place = divmod(number, len(axis))
            point.append(axis[place])
        return tuple(reversed(point))


# Random search: independent uniform coordinates.
# Bergstra and Bengio, "Random search for hyper-parameter optimization", JMLR 2012. Where only a few parameters matter,
# it tries more values of each than a grid of the same size.


class Random:
    """A configuration is a function of seed and number, so that it is the same in whatever order they are drawn."""

    def __init__(self, dimensions: int, seed: int) -> None:
        self.dimensions, self.seed = dimensions, seed

    def coordinates(self, number: int) -> Coordinates:
        return tuple(uniform(self.seed, number, dimension) for dimension in range(self.dimensions))


def uniform(*words: int) -> float:
    """Return a number from 0 to below 1 that is a function of these words."""
    return (mix(*words) >> 11) / 2**53


#: Returns the first so many points of the sequence.
Points = Callable[[int], Sequence[Sequence[float]]]


class Sobol:
    """Sobol's sequence: configurations that fill the space more evenly than random ones.

    Sobol', "On the distribution of points in a cube and the approximate evaluation of integrals", 1967; scrambled as by
    Owen (1998). The points come from a library as data, since making them needs tables of direction numbers.

    The points of the sequence by number; `points` is asked for twice as many whenever they run out.
    """

    def __init__(self, points: Points) -> None:
        self.points = points
        self._known: Sequence[Sequence[float]] = ()

    def coordinates(self, number: int) -> Coordinates:
        if number >= len(self._known):
            self._known = self.points(max(64, 1 << number.bit_length()))
        return tuple(self._known[number])
