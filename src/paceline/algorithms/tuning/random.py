"""Random search: independent uniform coordinates.

Bergstra and Bengio, "Random search for hyper-parameter optimization", JMLR 2012. Where only a few parameters matter, it
tries more values of each than a grid of the same size.
"""

from __future__ import annotations

from paceline.algorithms.chance import mix
from paceline.algorithms.tuning import Coordinates


class Random:
    """A configuration is a function of seed and number, so that it is the same in whatever order they are drawn."""

    def __init__(self, dimensions: int, seed: int) -> None:
        self.dimensions, self.seed = dimensions, seed

    def coordinates(self, number: int) -> Coordinates:
        return tuple(uniform(self.seed, number, dimension) for dimension in range(self.dimensions))


def uniform(*words: int) -> float:
    """Return a number from 0 to below 1 that is a function of these words."""
    return (mix(*words) >> 11) / 2**53
