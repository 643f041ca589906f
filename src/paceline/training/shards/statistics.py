"""Figures of columns, merged from batch to batch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paceline.training.shards.manifest import Statistics

#: Numbers that are converted at a time, so that they stay in a core's cache.
CACHED = 1 << 17


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
        each = values.reshape(-1, self.positions)
        step = max(1, CACHED // self.positions)
        with np.errstate(invalid="ignore"):  # of infinite numbers
            for first in range(0, len(each), step):
                self._merge(each[first : first + step].T.astype(np.float64, order="C"))
        self.least, self.greatest = min(self.least, float(values.min())), max(self.greatest, float(values.max()))

    def _merge(self, wide: NDArray[np.float64]) -> None:
        rows, mean = wide.shape[1], wide.mean(axis=1)
        wide -= mean[:, None]
        squares = np.einsum("ij,ij->i", wide, wide)
        total, apart = self.rows + rows, mean - self.mean
        self.squares += squares + apart * apart * self.rows * rows / total
        self.mean += apart * rows / total
        self.rows = total

    def statistics(self) -> Statistics | None:
        """Return the figures; None without any value."""
        if not self.rows:
            return None
        mean = float(self.mean.mean())
        with np.errstate(invalid="ignore"):
            squares = float(self.squares.sum() + self.rows * ((self.mean - mean) ** 2).sum())
        count, stds = self.rows * self.positions, np.sqrt(self.squares / self.rows)
        positions = tuple(zip(self.mean.tolist(), stds.tolist(), strict=True)) if self.positions > 1 else ()
        return Statistics(count, mean, math.sqrt(squares / count), self.least, self.greatest, positions)
