"""Cutting a run of pieces into stages so that the most expensive stage is as cheap as possible.

Also called the linear partition problem; solved by the textbook's dynamic programme, O(pieces^2 x stages). The cost of
a stage is the sum of its pieces' and of what it costs to cut where it begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate


def balanced(
    pieces: Sequence[float], stages: int, cut: Sequence[float], required: Sequence[bool] = ()
) -> tuple[int, ...]:
    """Return where stages begin, except the first; () where the pieces cannot make so many stages.

    `cut` is the cost of a cut before each piece, infinite where there cannot be one. Every stage has at least one of
    the `wanted` pieces; by default any will do.
    """
    sums = [0.0, *accumulate(pieces)]
    count = len(pieces)
    met = [0, *accumulate(required or [True] * count)]

    @cache
    def best(first: int, remaining: int) -> tuple[float, tuple[int, ...]]:
        """Return the cost of the most expensive of `left` stages from `first` on, and where the later ones begin."""
        enters = cut[first] if first else 0.0
        if remaining == 1:
            return (sums[count] - sums[first] + enters if met[count] > met[first] else math.inf), ()
        choice: tuple[float, tuple[int, ...]] = (math.inf, ())
        for place in range(first + 1, count - remaining + 2):
            if math.isinf(cut[place]) or met[place] == met[first]:
                continue
            mine = sums[place] - sums[first] + enters
            if mine >= choice[0]:
                break
            mine += cut[place]
            rest, places = best(place, remaining - 1)
            if max(mine, rest) < choice[0]:
                choice = max(mine, rest), (place, *places)
        return choice

    return best(0, stages)[1]
