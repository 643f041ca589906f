"""Backpropagation through time in bounded memory: which hidden states to keep, and which to recompute.

Gruslys, Munos, Danihelka, Lanctot and Graves, "Memory-efficient backpropagation through time", NeurIPS 2016 (its
variant that keeps hidden states). The fewest forward steps for t steps when m hidden states can be kept, the first one
among them:

    C(t, 1) = t (t + 1) / 2
    C(t, m) = 2 t - 1                                             for m >= t
    C(t, m) = min over y of  y + C(t - y, m - 1) + C(y, m)        keep the state after y steps; do what comes after it
                                                                  with one state fewer; then what comes before

Seven steps and three states, time 0's among them; 16 forward steps, where seven states would need 13:

    keeps 0 1   0 1 4   then 0 1 4: to 6, B6; to 5, B5; B4   0 1 2: to 3, B3; B2   0 1: B1   0: B0

It is binomial checkpointing (Griewank's revolve) for a chain of equal steps. Not to be confused with truncated
backpropagation through time, whose gradient is another one: this one's is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Advance(NamedTuple):
    """Run forward to this time from a kept state, or from the current one, and keep nothing on the way."""

    start: int
    to: int


class Keep(NamedTuple):
    """Keep the current state, which is that of this time."""

    at: int


class Drop(NamedTuple):
    """Drop the kept state of this time."""

    at: int


class Back(NamedTuple):
    """Run one step forward from this time, keeping what its backward needs, then that backward."""

    at: int


Order = Advance | Keep | Drop | Back


def forwards(steps: int, memory: int) -> int:
    """Return C(t, m), the fewest forward steps."""
    return _table(steps, min(memory, steps))[0][-1] if steps else 0


def orders(steps: int, memory: int) -> Iterator[Order]:
    """Yield what to do for all steps' gradients with at most `memory` kept states, that of time 0 among them."""
    if steps:
        yield from _orders(0, steps, min(memory, steps))


def _orders(first: int, count: int, memory: int) -> Iterator[Order]:
    if count == 1:
        yield Back(first)
        return
    if memory == 1:
        for last in reversed(range(count)):
            if last:
                yield Advance(first, first + last)
            yield Back(first + last)
        return
    cut = first + _table(count, min(memory, count))[1][-1]
    yield Advance(first, cut)
    yield Keep(cut)
    yield from _orders(cut, first + count - cut, min(memory - 1, first + count - cut))
    yield Drop(cut)
    yield from _orders(first, cut - first, min(memory, cut - first))


@lru_cache(maxsize=256)
def _table(steps: int, memory: int) -> tuple[list[int], list[int]]:
    """Return C(t, m) and the best y for t = 0 ... steps. As t grows the best y rises by at most one."""
    if memory <= 1:
        return [t * (t + 1) // 2 for t in range(steps + 1)], [0] * (steps + 1)
    fewer, _ = _table(steps, memory - 1)
    cost, best = [0, 1], [0, 0]
    for t in range(2, steps + 1):
        tries = [y for y in (best[-1], best[-1] + 1) if 0 < y < t]
        y = min(tries, key=lambda y, t=t: y + fewer[t - y] + cost[y])  # type: ignore[misc]
        cost.append(y + fewer[t - y] + cost[y])
        best.append(y)
    return cost, best
