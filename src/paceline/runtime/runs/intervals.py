"""Intervals for what a comparison measures: medians of rounds, and accuracies on a test set. Pure.

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
