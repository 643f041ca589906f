"""The chunk tree: the one order in which the chunks of a batch are summed, no matter which worker holds a chunk.

Neighbours are added first, then pairs of neighbours, and so on; what has no neighbour waits for the next level:

    8 chunks   ((0+1)+(2+3)) + ((4+5)+(6+7))
    6 chunks   ((0+1)+(2+3)) + (4+5)
    5 chunks   ((0+1)+(2+3)) + 4

Floating-point addition is commutative and not associative: a sum has the same bits whenever it is made of the same
halves. So a worker with neighbouring chunks sums the whole subtrees among them, and workers exchange the sums of
subtrees. Demmel and Nguyen, "Parallel reproducible summation", IEEE Trans. Comput. 2015, reach the same end for any
order, with wider accumulators instead of a fixed tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple


class Run(NamedTuple):
    """Neighbouring chunks; a subtree is the run of its leaves."""

    first: int
    stop: int


def join(one: Run, other: Run, chunks: int) -> Run | None:
    """Return the subtree that these two are the halves of; None if there is none."""
    left, right = sorted((one, other))
    size = left.stop - left.first
    whole = Run(left.first, min(left.first + 2 * size, chunks))
    halves = not size & (size - 1) and not left.first % (2 * size)
    return whole if halves and left.stop == right.first and right.stop == whole.stop else None


def subtrees(run: Run, chunks: int) -> list[Run]:
    """Return the largest subtrees that a run is made of, from its first chunk to its last."""
    trees, first = list[Run](), run.first
    while first < run.stop:
        size = 1
        while not first % (2 * size) and min(first + 2 * size, chunks) <= run.stop and first + size < chunks:
            size *= 2
        trees.append(Run(first, min(first + size, chunks)))
        first = trees[-1].stop
    return trees


def joins_of(run: Run, chunks: int) -> list[int]:
    """Return how many pairs of partial sums are joined after each chunk of a run, taken one after another."""
    joins, trees = list[int](), list[Run]()
    for chunk in range(*run):
        trees.append(Run(chunk, chunk + 1))
        joins.append(0)
        while len(trees) > 1 and (whole := join(trees[-2], trees[-1], chunks)):
            trees[-2:] = [whole]
            joins[-1] += 1
    return joins


@lru_cache(maxsize=256)
def divide(chunks: int, speeds: Sequence[int]) -> list[Run]:
    """Divide the chunks into a run for each of these speeds.

    The slowest run takes as little time as any division allows, with at least one chunk for each; among such divisions
    it is one with the fewest subtrees, as each is a partial sum that travels.
    """
    most = _most(chunks, speeds)
    #: By the chunks that are divided so far: the fewest subtrees, and the cuts that leave them.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for number, limit in enumerate(most):
        left = len(most) - number - 1
        ahead: dict[int, tuple[int, tuple[int, ...]]] = {}
        for first, (count, cuts) in best.items():
            for stop in range(first + 1, min(first + limit, chunks - left) + 1):
                option = count + len(subtrees(Run(first, stop), chunks)), (*cuts, stop)
                ahead[stop] = min(ahead.get(stop, option), option)
        best = ahead
    cuts = best[chunks][1]
    return [Run(first, stop) for first, stop in pairwise(cuts)]


def _most(chunks: int, speeds: Sequence[int]) -> list[int]:
    """Return how many chunks each may take so that none takes longer than it must."""
    times = sorted({Fraction(count, speed) for speed in speeds for count in range(1, chunks + 1)})
    for time in times:
        most = [int(time * speed) for speed in speeds]
        if min(most) >= 1 and sum(most) >= chunks:
            return most
    raise ValueError(f"{chunks} chunks cannot be divided into {len(speeds)} runs")
