"""Figures of columns, merged from batch to batch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paceline.shards.manifest import Statistics


class Moments:
    """Count, mean and sum of squares of a column, merged batch after batch (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.least, self.greatest = math.inf, -math.inf

    def add(self, values: NDArray[np.generic]) -> None:
        if not values.size:
            return
        wide = values.astype(np.float64)
        count, mean = wide.size, float(wide.mean())
        squares = float(((wide - mean) ** 2).sum())
        whole, apart = self.count + count, mean - self.mean
        self.squares += squares + apart * apart * self.count * count / whole
        self.mean += apart * count / whole
        self.count = whole
        self.least, self.greatest = min(self.least, float(wide.min())), max(self.greatest, float(wide.max()))

    def statistics(self) -> Statistics | None:
        """Return the figures; None without any value."""
        if not self.count:
            return None
        std = math.sqrt(self.squares / self.count)
        return Statistics(self.count, self.mean, std, self.least, self.greatest)
