"""Sobol's sequence: configurations that fill the space more evenly than random ones.

Sobol', "On the distribution of points in a cube and the approximate evaluation of integrals", 1967; scrambled as by
Owen (1998). The points come from a library as data, since making them needs tables of direction numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.algorithms.tuning import Coordinates

#: Returns the first so many points of the sequence.
Points = Callable[[int], Sequence[Sequence[float]]]


class Sobol:
    """The points of the sequence by number; `points` is asked for twice as many whenever they run out."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self._known: Sequence[Sequence[float]] = ()

    def coordinates(self, number: int) -> Coordinates:
        if number >= len(self._known):
            self._known = self.points(max(64, 1 << number.bit_length()))
        return tuple(self._known[number])
