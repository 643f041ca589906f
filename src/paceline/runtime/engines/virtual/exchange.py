"""A collective in virtual time: its rounds, each for all workers at once.

A ring of P workers takes 2 (P - 1) steps, in each of which a worker waits for its neighbour. In a large world of equal
links they have a closed form: after k steps worker w is at

    k t + max over j in 0..k of (arrived[w - j] + j latency)          t = seconds of one part on the wire

since the slowest chain of waits moves on to the next worker in j of the k steps. It is the maximum of a window that
slides once around the ring, so it costs O(P) instead of O(P^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.algorithms.collectives import Collective, Round
from paceline.algorithms.collectives.whole_vectors import Gather
from paceline.runtime.engines.virtual.world import World

LARGE = 512  # workers from which on the closed form is used, which does not divide the waiting by steps
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Exchanged(NamedTuple):
    """The cost of a collective for each worker."""

    #: When each worker leaves, in seconds.
    ends: list[float]
    #: Seconds for which the worker it takes from had not arrived. In a large ring: beyond an undisturbed exchange.
    waited: list[float]
    #: Bytes sent.
    sent: list[int]


def exchange(collective: Collective, arrived: Sequence[float], size: float, world: World) -> Exchanged:
    """Compute the times and bytes of a collective for each worker; see `exchange_all`."""
    ends, waited, sent = exchange_all(collective, np.array(arrived, float), size, world)
    return Exchanged(ends.tolist(), waited.tolist(), sent.tolist())


def exchange_all(collective: Collective, arrived: Floats, size: float, world: World) -> tuple[Floats, Floats, Indices]:
    """Compute the times and bytes of a collective over `size` bytes from the time at which each worker arrived.

    They equal those that `algorithms.collectives.advance` gives step by step.
    """
    workers = len(arrived)
    if isinstance(collective, Gather):
        return _gathered(arrived, size / workers, world)
    clocks: Floats = np.array(arrived, float)
    waited, sent = np.zeros(workers), np.zeros(workers, np.int64)
    piece = size / collective.segments(workers)
    for steps, source, sends, around in _prepared(collective, workers):  # type: ignore[arg-type]  # a frozen dataclass
        part: Floats = np.asarray(sends * piece, float)
        sent += steps * np.rint(part).astype(np.int64)
        if around and workers >= LARGE and not world.rack:
            travel = float(part[0]) / world.bandwidth
            after = _around(clocks, steps, travel, world.latency)
            waited += np.maximum(0.0, after - clocks - steps * (travel + world.latency))
            clocks = after
        else:
            clocks = _step_by_step(steps, source, clocks, waited, part, world)
    return clocks, waited, sent


@lru_cache(maxsize=8)
def _prepared(collective: Collective, workers: int) -> list[tuple[int, Indices, Indices, bool]]:
    """The rounds of a collective as arrays, and whether each goes around a ring."""
    return [
        (made.steps, np.array(made.sources), np.array(made.sends), _is_ring(made))
        for made in collective.rounds(workers)
    ]


def _step_by_step(steps: int, source: Indices, clocks: Floats, waited: Floats, part: Floats, world: World) -> Floats:
    """Make every step of a round; adds to `waited`."""
    latency, bandwidth = world.links(source)
    takes, travels = source != np.arange(len(clocks)), part / bandwidth
    transfer = part[source] / bandwidth
    for _ in range(steps):
        other = clocks[source]
        waited += np.maximum(other - clocks, 0.0)
        begins = np.maximum(clocks, other + latency)
        clocks = np.maximum(clocks + travels, np.where(takes, begins + transfer, 0.0))
    return clocks


def _gathered(arrived: Floats, message: float, world: World) -> tuple[Floats, Floats, Indices]:
    """Send all messages at once: the last to arrive is waited for once, and each link carries one after the other."""
    workers, numbers = len(arrived), np.arange(len(arrived))
    begins, travel = np.array(arrived, float), np.zeros(workers)
    for away in range(1, workers):
        source = (numbers - away) % workers
        latency, bandwidth = world.links(source)
        begins = np.maximum(begins, arrived[source] + latency)
        travel += message / bandwidth
    sent = np.full(workers, (workers - 1) * round(message), np.int64)
    return begins + travel, np.maximum(begins - arrived - world.latency, 0.0), sent


def _is_ring(candidate: Round) -> bool:
    """Whether every worker takes an equal part from the one before it."""
    workers = len(candidate.sources)
    sources = np.array(candidate.sources)
    return bool((sources == (np.arange(workers) - 1) % workers).all()) and len(set(candidate.sends)) == 1


def _around(arrived: Floats, steps: int, travel: float, latency: float) -> Floats:
    """Return every worker's clock after so many steps around a ring."""
    workers = len(arrived)
    # Position u stands for worker u mod P; a wait that began j steps back has come j workers far.
    places = np.arange(-steps, workers)
    values = arrived[places % workers] - places * latency
    largest = _sliding_largest(values, steps + 1)
    return np.asarray(steps * travel + np.arange(workers) * latency + largest)


def _sliding_largest(values: Floats, width: int) -> Floats:
    """Return the largest value of each window of this width, in time that does not depend on the width."""
    count = len(values) - width + 1
    blocks = -(-len(values) // width)
    padded = np.full(blocks * width, -np.inf)
    padded[: len(values)] = values
    grid = padded.reshape(blocks, width)
    ahead = np.maximum.accumulate(grid, axis=1).ravel()
    back = np.maximum.accumulate(grid[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.asarray(np.maximum(back[:count], ahead[width - 1 : width - 1 + count]))
