"""Where to cut a run of pieces into stages, so that the dearest stage is as cheap as can be.

Also called the linear partition problem; solved by the textbook's dynamic programme, O(pieces^2 x stages). The cost of
a stage is the sum of its pieces' and of what it costs to cut where it begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate


def balanced(pieces: Sequence[float], stages: int, cut: Sequence[float]) -> tuple[int, ...]:
    """The places where stages but the first begin. `cut`: what it costs to cut before each piece; infinity where it
    cannot be done. () where there are not enough places.
    """
    sums = [0.0, *accumulate(pieces)]
    count = len(pieces)

    @cache
    def best(first: int, left: int) -> tuple[float, tuple[int, ...]]:
        """The dearest stage, when the pieces from `first` on make `left` stages; and where the later ones begin."""
        enters = cut[first] if first else 0.0
        if left == 1:
            return sums[count] - sums[first] + enters, ()
        found: tuple[float, tuple[int, ...]] = (math.inf, ())
        for place in range(first + 1, count - left + 2):
            if math.isinf(cut[place]):
                continue
            mine = sums[place] - sums[first] + enters
            if mine >= found[0]:
                break
            mine += cut[place]
            rest, places = best(place, left - 1)
            if max(mine, rest) < found[0]:
                found = max(mine, rest), (place, *places)
        return found

    return best(0, stages)[1]
