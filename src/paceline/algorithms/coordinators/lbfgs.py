"""Sandblaster L-BFGS: a quasi-Newton method whose vectors stay with the shards.

Dean et al., "Large scale distributed deep networks", NeurIPS 2012, the second half of DistBelief (the first is
Downpour). L-BFGS itself is Nocedal, "Updating quasi-Newton matrices with limited storage", Mathematics of Computation
1980. From the last pairs s = x' - x of steps and y = g' - g of gradients, the two-loop recursion makes the direction
d = -H g, where H stands for the inverse of the Hessian:

    d  <-  g
    newest pair to oldest:    alpha = s.d / s.y;    d  <-  d - alpha y
    d  <-  (s.y / y.y) d,  of the newest pair
    oldest pair to newest:    beta = y.d / s.y;     d  <-  d + (alpha - beta) s
    d  <-  -d

Line search: backtracking. The first trial is the whole step (before there are pairs, a step of length 1 or |g|,
whichever is shorter), and it is halved until the loss falls by what Armijo asks,

    f(x + t d)  <=  f(x) + 0.0001 t d.g

at most 20 times; then the parameters stay as they were and the pairs are forgotten. Armijo's condition does not
promise y.s > 0, so a pair without it is left out. Where the gradient is zero or not finite nothing moves.

An update is one such iteration on one batch: all its evaluations are of the same samples. The pairs are carried over
to the next batch; as published, the batch is the whole data set. Not to be confused with torch.optim.LBFGS, which
makes up to 20 iterations in a step, nor with the published load balancing (small portions of work, assigned as
workers become free; backup copies of the last ones), which is not here: every worker has its chunk.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from paceline.algorithms.coordinators import (
    GRADIENT,
    PARAMETERS,
    Axpy,
    Command,
    Commands,
    Copy,
    Done,
    Dot,
    Evaluate,
    Scale,
)

DIRECTION = "direction"
SHRINK, ENOUGH, TRIALS = 0.5, 1e-4, 20  # of the line search
FLAT = 1e-30  # a positive s.y, but rounding: to divide by it would overflow


class Pair(NamedTuple):
    """A step and the change of the gradient along it, held in the vectors `s` and `y`."""

    s: str
    y: str
    sy: float
    yy: float


@dataclass(frozen=True)
class Lbfgs:
    memory: int = 10  # pairs

    @property
    def slots(self) -> list[tuple[str, str]]:
        """The vectors of each pair, and a spare slot: it holds the point that a step starts from."""
        return [(f"s{slot}", f"y{slot}") for slot in range(self.memory + 1)]

    @property
    def vectors(self) -> tuple[str, ...]:
        return (PARAMETERS, GRADIENT, DIRECTION, *(name for slot in self.slots for name in slot))

    def commands(self, remembered: Sequence[Sequence[str | float]] = ()) -> Commands:
        pairs = [Pair(*pair) for pair in remembered]  # type: ignore[arg-type]  # the oldest first
        while True:
            loss = yield Evaluate()
            slope = yield from _direction(pairs)
            s, y = next(slot for slot in self.slots if slot not in [pair[:2] for pair in pairs])
            yield Copy(s, PARAMETERS)
            yield Copy(y, GRADIENT)
            if (yield from _line_search(loss, slope, 1.0 if pairs else _first_step(slope), start=s)):
                yield from _difference(s, PARAMETERS)
                yield from _difference(y, GRADIENT)
                sy = yield Dot(s, y)
                yy = yield Dot(y, y)
                if sy > FLAT:
                    pairs = [*pairs, Pair(s, y, sy, yy)][-self.memory :]
            else:
                pairs = []
            yield Done(pairs)


def _direction(pairs: list[Pair]) -> Generator[Command, float, float]:
    """Make the direction and return the slope of the loss along it."""
    yield Copy(DIRECTION, GRADIENT)
    alphas = []
    for pair in reversed(pairs):
        alpha = (yield Dot(pair.s, DIRECTION)) / pair.sy
        yield Axpy(DIRECTION, -alpha, pair.y)
        alphas.append(alpha)
    if pairs:
        yield Scale(DIRECTION, pairs[-1].sy / pairs[-1].yy)
    for pair, alpha in zip(pairs, reversed(alphas), strict=True):
        beta = (yield Dot(pair.y, DIRECTION)) / pair.sy
        yield Axpy(DIRECTION, alpha - beta, pair.s)
    yield Scale(DIRECTION, -1.0)
    return (yield Dot(DIRECTION, GRADIENT))


def _first_step(slope: float) -> float:
    """Return the first step along the bare gradient, whose square is -slope: no further than 1."""
    return 1 / sqrt(-slope) if slope < -1 else 1.0


def _line_search(loss: float, slope: float, step: float, start: str) -> Generator[Command, float, bool]:
    """Move the parameters from `start` along the direction; return whether the loss fell."""
    if not slope < 0:  # also where it is NaN
        return False
    for _ in range(TRIALS):
        yield Copy(PARAMETERS, start)
        yield Axpy(PARAMETERS, step, DIRECTION)
        if (yield Evaluate()) <= loss + ENOUGH * step * slope:
            return True
        step *= SHRINK
    yield Copy(PARAMETERS, start)
    return False


def _difference(old: str, new: str) -> Commands:
    """Set old to new - old."""
    yield Scale(old, -1.0)
    yield Axpy(old, 1.0, new)
