"""A collective in virtual time: its rounds, each for all workers at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.core.collectives import Collective
from paceline.engines.virtual.world import World


class Exchanged(NamedTuple):
    """What a collective cost each worker."""

    #: When each worker leaves, in seconds.
    ends: list[float]
    #: Seconds for which the worker it takes from had not arrived.
    waited: list[float]
    #: Bytes sent.
    sent: list[int]


def exchange(collective: Collective, arrived: Sequence[float], size: float, world: World) -> Exchanged:
    """Compute the times and bytes of a collective over `size` bytes from the time at which each worker arrived.

    They equal those that `core.collectives.advance` gives step by step.
    """
    workers = len(arrived)
    clocks, own = np.array(arrived), np.arange(workers)
    waited, sent = np.zeros(workers), np.zeros(workers, np.int64)
    piece = size / collective.segments(workers)
    for steps, sources, sends in collective.rounds(workers):
        source, part = np.array(sources), np.array(sends) * piece
        takes, travels = source != own, part / world.bandwidth
        taken = travels[source]
        sent += steps * np.rint(part).astype(np.int64)
        for _ in range(steps):
            other = clocks[source]
            waited += np.maximum(other - clocks, 0.0)
            begins = np.maximum(clocks, other + world.latency)
            clocks = np.maximum(clocks + travels, np.where(takes, begins + taken, 0.0))
    return Exchanged(clocks.tolist(), waited.tolist(), sent.tolist())
