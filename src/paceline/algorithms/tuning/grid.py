"""Grid search: every combination of the values of each axis, exactly once.

The last axis changes fastest, as in nested loops over the axes in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from paceline.algorithms.tuning import Coordinates


class Grid:
    """The product of the axes, each a list of coordinates."""

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
