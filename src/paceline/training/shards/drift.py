"""How far the values of a column have moved from those that came first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.training.shards.manifest import Statistics

# --- Figures of columns, merged from batch to batch -------------------------------------------------------------------

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


Floats = NDArray[np.float64]
#: Values of the first shard that are kept of each column: its quantiles, evenly spaced.
QUANTILES = 1000
BINS = 10
#: Wider rows, such as images, are compared as a whole and not place by place.
MOST_PLACES = 64
#: A population stability index above this one is commonly called a major change.
MOVED = 0.25
#: Of shards that have not moved, the share whose distance is taken for more than chance.
FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Drift:
    """How a shard's column differs from that of the first shard; of a vector, at the place that differs most."""

    population_stability: float
    kolmogorov_smirnov: float
    chance: float = 0.0  # the Kolmogorov-Smirnov distance that shards of so many rows may have by chance

    @property
    def moved(self) -> bool:
        """Whether the column has changed much, and by more than few rows do by chance."""
        return self.population_stability > MOVED and self.kolmogorov_smirnov > self.chance


@dataclass(frozen=True)
class Reference:
    """The first shard's values of each place of a column, as sorted quantiles: one row per place."""

    quantiles: Floats

    @classmethod
    def of(cls, rows: NDArray[np.generic]) -> Reference:
        shares = np.linspace(0, 1, min(QUANTILES, len(rows)))
        return cls(np.quantile(_places(rows), shares, axis=1, method="nearest").T)

    def drift(self, rows: NDArray[np.generic]) -> Drift:
        """Compare the rows of another shard with the first one."""
        pairs = list(zip(self.quantiles, _places(rows), strict=True))
        return Drift(
            max(population_stability(first, now) for first, now in pairs),
            max(kolmogorov_smirnov(first, now) for first, now in pairs),
            chance(self.quantiles.shape[1], len(pairs[0][1]), len(pairs)),
        )


def population_stability(first: Floats, now: Floats) -> float:
    """Return the population stability index of `now` against `first`, which is sorted, in bins of equal count.

    It is the sum of (q - p) log(q / p) over the bins, with half a value added to each, so that none is empty.
    """
    edges = np.unique(np.quantile(first, np.linspace(0, 1, BINS + 1)[1:-1]))
    p, q = (_shares(values, edges) for values in (first, now))
    return float(np.sum((q - p) * np.log(q / p)))


def kolmogorov_smirnov(first: Floats, now: Floats) -> float:
    """Return the greatest distance between two distribution functions; `first` is sorted."""
    now = np.sort(now)
    points = np.concatenate([first, now])
    before = np.searchsorted(first, points, side="right") / len(first)
    return float(np.abs(before - np.searchsorted(now, points, side="right") / len(now)).max())


def chance(first: int, now: int, places: int) -> float:
    """Return the distance that the worst of several places exceeds in `FALSE_ALARMS` of cases if nothing has moved.

    It is the asymptotic bound of the two-sample test, with the error divided among the places.
    """
    return math.sqrt(-math.log(FALSE_ALARMS / places / 2) / 2 * (1 / first + 1 / now))


def as_lists(references: Mapping[str, Reference]) -> dict[str, list[list[float]]]:
    """Return references as data, for a file."""
    return {name: reference.quantiles.tolist() for name, reference in references.items()}


def from_lists(body: Mapping[str, list[list[float]]]) -> dict[str, Reference]:
    return {name: Reference(np.array(quantiles, np.float64)) for name, quantiles in body.items()}


def _places(rows: NDArray[np.generic]) -> Floats:
    """Return the values of each place of the rows, or all values as one place."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    return flat.T if flat.shape[1] <= MOST_PLACES else flat.reshape(1, -1)


def _shares(values: Floats, edges: Floats) -> Floats:
    counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1) + 0.5
    shares: Floats = counts / counts.sum()
    return shares
