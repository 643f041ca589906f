"""What a comparison measures: speeds without the warm-up, accuracies that are held, and their intervals. Pure.

    median_interval          order statistics of the rounds; assumes nothing about how they are distributed
    wilson                   one accuracy, from the number of test samples
    difference_of_accuracies two accuracies, by Newcombe's hybrid of two Wilson intervals

An accuracy's interval accounts for the size of the test set alone: another seed may give another accuracy.

Newcombe, R. G. (1998). Interval estimation for the difference between independent proportions: comparison of eleven
methods. Statistics in Medicine 17, method 10.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.runtime.runs.record import Evaluation
from paceline.runtime.runs.trace import Kind, Trace

# --- The speed of a run without its warm-up and its end. Pure ---------------------------------------------------------
# The first batches of a worker are slower than the others: torch.compile compiles, libraries choose their algorithms,
# memory is touched for the first time. At the end a worker may have no more to do while others still train. A
# comparison of speeds leaves both out.
#
#     worker 0   | first | second |  3  |  4  |  5  |  6  |
#     worker 1   |   first   | second |  3  |  4  |  5  |  6  |
#                                     ├──── what is timed ┤

BATCHES = 2  # of each worker that are warm-up


class Steady(NamedTuple):
    """The part of a run in which every worker is warm and has work."""

    samples: float  # a batch that lies in it in part counts in part
    seconds: float
    share: float  # of the run's samples

    @property
    def samples_per_second(self) -> float:
        """The speed."""
        return self.samples / self.seconds


def steady(trace: Trace) -> Steady | None:
    """Return the part of a run in which every worker is warm and has work; None if there is none."""
    rows = trace.of_kind(Kind.COMPUTE)
    rows = rows[rows["samples"] > 0]
    ends = [np.sort(rows["end"][rows["worker"] == worker]) for worker in np.unique(rows["worker"])]
    if not ends or min(map(len, ends)) <= BATCHES:
        return None
    first, last = max(int(mine[BATCHES - 1]) for mine in ends), min(int(mine[-1]) for mine in ends)
    if last <= first:
        return None
    spans = np.maximum(rows["end"] - rows["start"], 1)
    inside = np.minimum(rows["end"], last) - np.maximum(rows["end"] - spans, first)
    samples = float((rows["samples"] * np.clip(inside / spans, 0.0, 1.0)).sum())
    return Steady(samples, (last - first) / 1e9, samples / float(rows["samples"].sum()))


# --- Levels of accuracy that runs hold: reached, and never left again before the end. Pure ----------------------------
#     accuracy   96.7            ╭╮
#                94.4    ╭───╮╭──╯╰───    held from the second rise on
#                       ─╯   ╰╯
#
# On a few hundred test samples a single evaluation may lie points above what the model has learned.


def common_level(histories: Sequence[Sequence[Evaluation]], metric: str) -> float | None:
    """Return the best level that every run holds to its end; None if one was not evaluated.

    The last evaluation of a run is the best level that it holds, so this is the lowest of the last ones.
    """
    last = [history[-1].metrics.get(metric, math.nan) if history else math.nan for history in histories]
    return min(last) if last and all(map(math.isfinite, last)) else None


def seconds_to_hold(history: Sequence[Evaluation], metric: str, level: float) -> float | None:
    """Return when a run reached the level for good; None if it ends below it."""
    seconds = None
    for evaluation in reversed(history):
        if not evaluation.metrics.get(metric, -math.inf) >= level:
            break
        seconds = evaluation.seconds
    return seconds


CONFIDENCE = 0.9
Z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class Interval(NamedTuple):
    """An interval from the lowest to the highest value that the measurements leave room for."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the width."""
        return (self.high - self.low) / 2


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the narrowest symmetric pair of order statistics that holds the median with this confidence.

    The k-th smallest and the k-th largest of n values hold it unless fewer than k of them fall on one side of it,
    which n tosses of a coin decide. Four values or fewer cannot be that sure; they give their whole range.
    """
    ordered, n = sorted(values), len(values)
    left_out, missed = 0, 0.0
    for count in range(n // 2):
        missed += 2 * math.comb(n, count) / 2**n
        if missed > 1 - confidence or count + 1 > (n - 1) // 2:
            break
        left_out = count
    return Interval(ordered[left_out], ordered[n - 1 - left_out])


def wilson(share: float, samples: int, z: float = Z) -> Interval:
    """Return Wilson's interval of a share that was counted among so many samples."""
    n = max(1, samples)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(0.0, share * (1 - share)) / n + z * z / (4 * n * n))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def difference_of_accuracies(one: float, other: float, samples: int) -> Interval:
    """Return the interval of `one - other`, each measured on so many test samples."""
    first, second = wilson(one, samples), wilson(other, samples)
    change = one - other
    return Interval(
        change - math.hypot(one - first.low, second.high - other),
        change + math.hypot(first.high - one, other - second.low),
    )
