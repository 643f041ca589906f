"""Searches over configurations, as pure machines: samplers say which are tried, schedulers how long each is trained.

Losses are told in the order in which they arrived, and chance comes in as a seed, so a machine that is told the same
again decides the same again: this is how a journal is replayed.

    samplers    grid, random, sobol
    schedulers  fifo, successive_halving, asha, hyperband, median_stopping, pbt
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
