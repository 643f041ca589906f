"""Fitting a card to measurements: nonnegative least squares of relative errors.

    seconds of a step  =  sum of figure x coefficient          every coefficient >= 0

Each measured step counts alike, whether it takes a hundred microseconds or a second. Steps that the first fit misses by
much weigh less in the next one, since a busy machine makes some steps slow. The interval comes from steps that were
left out of the fit: the 90% quantile of their errors.

Measurements do not tell all figures apart, so each coefficient is also drawn towards a usual value, times the median
speed of the machine: a ridge penalty, as if that value had been measured with a small weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.algorithms.collectives import Collective
from paceline.planning.planner.card import FIGURES, ExchangeSeconds

FOLDS = 6
ROUNDS = 8  # of reweighting
LEAST = 1e-9  # seconds of an error that no measurement goes below
QUANTILES = 21
MOST = 0.35  # of the error of an exchange: between points it is interpolated
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """Coefficients, and how far they are off."""

    coefficients: dict[str, float]
    #: Half the 90% interval of measured over predicted, as a logarithm, from steps that were left out.
    error: float
    #: Measured over predicted of every step when it was left out.
    ratios: tuple[float, ...]


def fit(
    rows: Sequence[Mapping[str, float]],
    seconds: Sequence[float],
    usual: Mapping[str, float] | None = None,
    weight: float = 0.0,
) -> Fitted:
    """Fit coefficients to the figures of steps and their seconds; `weight` draws them towards `usual` ones."""
    names = [name for name in FIGURES if any(row.get(name) for row in rows)]
    figures = np.array([[row.get(name, 0.0) for name in names] for row in rows])
    times = np.array(seconds)
    prior = np.array([(usual or {}).get(name, 0.0) for name in names])
    if weight and prior.any():
        prior = prior * np.median(times / np.maximum(figures @ prior, LEAST))
    ratios = np.ones(len(times))
    folds = np.arange(len(times)) % FOLDS
    for fold in range(FOLDS) if len(times) >= 2 * FOLDS else ():
        out = folds == fold
        solution = _solve(figures[~out], times[~out], prior, weight)
        ratios[out] = times[out] / np.maximum(figures[out] @ solution, LEAST)
    coefficients = _solve(figures, times, prior, weight)
    return Fitted(dict(zip(names, coefficients.tolist(), strict=True)), spread(ratios), tuple(ratios.tolist()))


def _solve(figures: Matrix, seconds: Matrix, prior: Matrix | None = None, weight: float = 0.0) -> Matrix:
    """Minimise the relative errors by nonnegative least squares, reweighted towards their median."""
    from scipy.optimize import nnls

    relative = figures / seconds[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-30)  # columns of one size, or the solver stops early
    relative = relative / scale
    weights = np.ones(len(seconds))
    solution, count = np.zeros(figures.shape[1]), figures.shape[1]
    drawn = np.diag(weight / np.maximum(prior * scale, LEAST)) if prior is not None and weight else np.empty((0, count))
    for _ in range(ROUNDS):
        rows, targets = np.vstack([relative * weights[:, None], drawn]), [*weights, *[weight] * len(drawn)]
        solution, _ = nnls(rows, np.array(targets), maxiter=200 * count)
        errors = np.abs(relative @ solution - 1.0)
        weights = 1.0 / np.sqrt(np.maximum(errors, 0.02))
        weights /= weights.max()
    return np.asarray(solution / scale)


def spread(ratios: Sequence[float] | Matrix, share: float = 0.9) -> float:
    """Return the quantile of the logarithms' sizes: an interval of exp(+-this) covers this share of the ratios."""
    sizes = np.abs(np.log(np.maximum(np.asarray(ratios), 1e-12)))
    return float(np.quantile(sizes, share)) if len(sizes) else 0.0


def line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Fit seconds = start + slope x size, both at least 0, by relative errors; return them and the error."""
    figures = np.array([[1.0, size] for size in sizes])
    times = np.maximum(np.array(seconds), 1e-7)
    start, slope = _solve(figures, times).tolist()
    predicted = start + slope * np.array(sizes)
    return start, slope, spread(times / np.maximum(predicted, 1e-9))


def exchange(
    kind: str,
    workers: int,
    sizes: Sequence[float],
    seconds: Sequence[float],
    collective: Collective | None = None,
    between: float = 0.0,
    tensor: float = 0.0,
) -> ExchangeSeconds:
    """Fit latency and bandwidth to the seconds of an exchange at several sizes, and keep these as points.

    With a collective, its closed form is used backwards: the figures found are those of one step of its table.
    """
    steps, share = 1.0, 1.0
    if collective is not None:
        steps = collective.seconds(workers, 0.0, 1.0, 1.0)
        share = collective.seconds(workers, 1.0, 0.0, 1.0)
    start, slope, error = line(sizes, seconds)
    latency, bandwidth = start / steps, min(share / slope, 1e12) if slope > 0 else 1e12
    highest = np.maximum.accumulate(np.array(seconds))  # more bytes never take less time
    points = tuple((size * share / steps, float(took) / steps) for size, took in zip(sizes, highest, strict=True))
    return ExchangeSeconds(kind, workers, latency, bandwidth, min(error, MOST), between, tensor, points)


def piece(
    kind: str,
    workers: int,
    counts: Sequence[float],
    sizes: Sequence[float],
    seconds: Sequence[float],
    totals: Sequence[float],
) -> ExchangeSeconds:
    """Fit what each piece of work of a divided model costs, and each byte, to the seconds that are not computing.

    counts   pieces of work that an update waits for
    sizes    bytes that an update waits for
    totals   the seconds of the update, by which errors are judged
    """
    scale = np.array(totals)
    figures = np.array([[count, size] for count, size in zip(counts, sizes, strict=True)])
    targets = np.maximum(np.array(seconds), LEAST)
    rows = figures / scale[:, None]
    units = np.maximum(rows.max(axis=0), 1e-30)
    from scipy.optimize import nnls

    each, byte = nnls(rows / units, targets / scale)[0] / units
    off = spread(1.0 + (figures @ np.array([each, byte]) - targets) / scale)
    return ExchangeSeconds(kind, workers, float(each), float(min(1 / byte, 1e12)) if byte > 0 else 1e12, max(off, 0.1))


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return evenly spaced quantiles of values over their median."""
    if not len(values):
        return (1.0,)
    middle = float(np.median(values))
    return tuple(float(q) / middle for q in np.quantile(values, (np.arange(QUANTILES) + 0.5) / QUANTILES))


def mean_of_largest(jitter: Sequence[float], count: int) -> float:
    """Return the mean of the largest of so many draws, over the median of one.

    jitter   evenly spaced quantiles of one draw over its median
    """
    n = len(jitter)
    ordered = sorted(jitter)
    return sum(value * (((k + 1) / n) ** count - (k / n) ** count) for k, value in enumerate(ordered))


def combined(*errors: float) -> float:
    """Return the error of a sum or product whose parts err independently."""
    return math.sqrt(sum(error * error for error in errors))
