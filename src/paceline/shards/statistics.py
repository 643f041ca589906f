"""Figures of columns, merged from batch to batch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paceline.shards.manifest import Statistics


class Moments:
    """Count, mean and sum of squares of a column, merged batch after batch (Chan, Golub and LeVeque 1979).

    With `positions`, those of each of so many places of a row; the figures of the whole column follow from them.
    """

    def __init__(self, positions: int = 1) -> None:
        self.rows, self.positions = 0, positions
        self.mean, self.squares = np.zeros(positions), np.zeros(positions)
        self.least, self.greatest = math.inf, -math.inf

    def add(self, values: NDArray[np.generic]) -> None:
        if not values.size:
            return
        wide = values.astype(np.float64).reshape(-1, self.positions)
        rows, mean = len(wide), wide.mean(axis=0)
        wide -= mean
        squares = np.multiply(wide, wide, out=wide).sum(axis=0)
        whole, apart = self.rows + rows, mean - self.mean
        self.squares += squares + apart * apart * self.rows * rows / whole
        self.mean += apart * rows / whole
        self.rows = whole
        self.least, self.greatest = min(self.least, float(values.min())), max(self.greatest, float(values.max()))

    def statistics(self) -> Statistics | None:
        """Return the figures; None without any value."""
        if not self.rows:
            return None
        mean = float(self.mean.mean())
        squares = float(self.squares.sum() + self.rows * ((self.mean - mean) ** 2).sum())
        count, stds = self.rows * self.positions, np.sqrt(self.squares / self.rows)
        positions = tuple(zip(self.mean.tolist(), stds.tolist(), strict=True)) if self.positions > 1 else ()
        return Statistics(count, mean, math.sqrt(squares / count), self.least, self.greatest, positions)
