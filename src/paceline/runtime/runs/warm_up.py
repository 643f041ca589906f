"""The speed of a run without its warm-up and its end. Pure.

The first batches of a worker are slower than the others: torch.compile compiles, libraries choose their algorithms,
memory is touched for the first time. At the end a worker may have no more to do while others still train. A comparison
of speeds leaves both out.

    worker 0   | first | second |  3  |  4  |  5  |  6  |
    worker 1   |   first   | second |  3  |  4  |  5  |  6  |
                                    ├──── what is timed ┤
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.runtime.runs.trace import Kind, Trace

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
