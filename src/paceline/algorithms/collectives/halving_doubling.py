"""Halving and doubling: half of the vector with a far partner, a quarter with a nearer one, and so on; then back.

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur et al., IJHPCA 2005. As little to
send as a ring, in 2 log2(P) steps instead of 2 (P-1). Four workers, segments a b c d, capital = sum complete:

    step        worker 0            worker 1            worker 2            worker 3
    halve 0     cd to 2, adds ab    cd to 3, adds ab    ab to 0, adds cd    ab to 1, adds cd
    halve 1     b to 1, has A       a to 0, has B       d to 3, has C       c to 2, has D
    double 0    A to 1, has AB      B to 0, has AB      C to 3, has CD      D to 2, has CD
    double 1    AB to 2, has all    AB to 3, has all    CD to 0, has all    CD to 1, has all

In worlds that are not a power of two, the workers beyond the greatest one first send all to a partner, and get the sum
back at the end. Not to be confused with recursive doubling, which exchanges the whole vector log2(P) times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.algorithms.collectives import SIT_OUT, Part, Round, Step


@dataclass(frozen=True)
class HalvingDoubling:
    def segments(self, workers: int) -> int:
        return _core(workers)

    def steps(self, worker: int, workers: int) -> Iterator[Step]:
        core = _core(workers)
        extra = worker + core if worker + core < workers else None
        if workers > core:
            if worker >= core:
                yield Step(Part(worker - core, 0, core), None)
            else:
                yield SIT_OUT if extra is None else Step(None, Part(extra, 0, core))
        halves = list(_halves(worker, core))
        for partner, local_half, partner_half in halves:
            yield _idle(worker, core) or Step(Part(partner, *partner_half), Part(partner, *local_half))
        for partner, local_half, partner_half in reversed(halves):
            yield _idle(worker, core) or Step(Part(partner, *local_half), Part(partner, *partner_half), False)
        if workers > core:
            if worker >= core:
                yield Step(None, Part(worker - core, 0, core), False)
            else:
                yield SIT_OUT if extra is None else Step(Part(extra, 0, core), None, False)

    def rounds(self, workers: int) -> Iterator[Round]:
        core = _core(workers)
        extras = workers - core
        if extras:
            yield Round(1, [*range(core, workers), *range(extras, workers)], [0] * core + [core] * extras)
        away = [1 << bit for bit in range(core.bit_length() - 1)]
        for distance in (*reversed(away), *away):  # as many segments as the partner is away
            partners = [worker ^ distance for worker in range(core)]
            yield Round(1, [*partners, *range(core, workers)], [distance] * core + [0] * extras)
        if extras:
            yield Round(1, [*range(core), *range(extras)], [core] * extras + [0] * (workers - extras))

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        core, send = _core(workers), size / bandwidth
        extras = 2 * (latency + send) if workers > core else 0.0
        return extras + 2 * (core.bit_length() - 1) * latency + 2 * send * (core - 1) / core


def meeting_order(workers: int) -> list[int]:
    """Return the workers in an order in which those that meet first are neighbours, then pairs of them, and so on."""
    core = _core(workers)
    bits = core.bit_length() - 1
    order = [sum((place >> bit & 1) << bits - 1 - bit for bit in range(bits)) for place in range(core)]
    return [worker for first in order for worker in (first, first + core) if worker < workers]


def _core(workers: int) -> int:
    """Return the greatest power of two that is not more than the workers."""
    return 1 << workers.bit_length() - 1


def _idle(worker: int, core: int) -> Step | None:
    return SIT_OUT if worker >= core else None


def _halves(worker: int, core: int) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Yield (partner, the half kept, the half given) from the whole vector down to one segment."""
    first, stop, distance = 0, core, core // 2
    while distance:
        middle = (first + stop) // 2
        low, high = (first, middle), (middle, stop)
        local_half, partner_half = (high, low) if worker & distance else (low, high)
        yield worker ^ distance, local_half, partner_half
        (first, stop), distance = local_half, distance // 2
