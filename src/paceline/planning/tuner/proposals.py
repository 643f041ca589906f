"""Configurations by number: what a sampler draws, as far as the space allows it."""

from __future__ import annotations

import json
from typing import Protocol

from paceline.algorithms.tuning import Coordinates, Sampler
from paceline.errors import TuningError
from paceline.planning.tuner.space import Configuration, Space

PATIENCE = 10_000  # coordinates that are drawn in vain before the constraints are taken to be impossible


class Proposals(Protocol):
    """Proposes the configuration of each trial, and receives its result."""

    #: Whether a configuration depends on how earlier trials went, so that none is asked for before it can begin.
    learns: bool

    def configuration(self, trial: int) -> Configuration | None:
        """Return the configuration of a new trial, or None if there are no more. Trials come in order."""

    def at(self, coordinates: Coordinates) -> Configuration | None:
        """Return the configuration at a point of the unit cube; None if it is not allowed."""

    def preview(self, trial: int) -> Configuration | None:
        """Return the configuration that a trial will have, if it can be known before it begins."""

    def recall(self, trial: int, configuration: Configuration) -> None:
        """Take note of a configuration that a journal says was proposed."""

    def record_loss(self, trial: int, loss: float, reports: dict[int, float]) -> None:
        """Take the loss of a trial that is over."""


class Drawn:
    """Configurations of a sampler, without those that the space does not allow, and of a grid without repetitions."""

    learns = False

    def __init__(self, sampler: Sampler, space: Space, distinct: bool) -> None:
        self.sampler, self.space, self.distinct = sampler, space, distinct
        #: The coordinates of each trial, and how many numbers of the sampler they took.
        self.found: list[Coordinates] = []
        self._drawn = 0
        self._seen = set[str]()

    def coordinates(self, number: int) -> Coordinates | None:
        """Return the point of a trial: a function of its number alone."""
        while len(self.found) <= number:
            begun = self._drawn
            while (point := self.sampler.coordinates(self._drawn)) is not None:
                self._drawn += 1
                if self._takes(point):
                    self.found.append(point)
                    break
                if self._drawn - begun > PATIENCE and not self.distinct:
                    raise TuningError(f"the constraints allowed none of {PATIENCE:,} configurations; loosen them")
            else:
                return None
        return self.found[number]

    def _takes(self, point: Coordinates) -> bool:
        configuration = self.space.configuration(point)
        if configuration is None or not self.distinct:
            return configuration is not None
        key = json.dumps(configuration)
        if key in self._seen:
            return False  # differs only in parameters that do not exist here
        self._seen.add(key)
        return True

    def configuration(self, trial: int) -> Configuration | None:
        point = self.coordinates(trial)
        return None if point is None else self.space.configuration(point)

    def at(self, coordinates: Coordinates) -> Configuration | None:
        return self.space.configuration(coordinates)

    def preview(self, trial: int) -> Configuration | None:
        return self.configuration(trial)

    def recall(self, trial: int, configuration: Configuration) -> None:
        if (now := self.configuration(trial)) != configuration:
            raise TuningError(
                f"the journal's trial {trial} has the configuration {configuration}, and the space now gives {now}; "
                "resume with the space and the constraints of the first time"
            )

    def record_loss(self, trial: int, loss: float, reports: dict[int, float]) -> None:
        """A sampler of this kind does not learn."""

    def __len__(self) -> int:
        """Return how many configurations there are, for a sampler that has an end."""
        while self.coordinates(len(self.found)) is not None:
            pass
        return len(self.found)
