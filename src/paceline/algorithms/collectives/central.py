"""Central all-reduce: all workers send their vectors to one, which adds them up and sends the sum to all.

The synchronous parameter server of Li et al., "Scaling distributed machine learning with the parameter server", OSDI
2014, and of Chen et al., "Revisiting distributed synchronous SGD", 2016, with worker 0 as the server. Few messages in a
row, but 2 (P-1) vectors through the links of one: the reason why rings were invented. Four workers:

    step        worker 0        worker 1     worker 2     worker 3
    reduce 0    adds that of    to 0
    reduce 1    adds that of                 to 0
    reduce 2    adds that of                              to 0
    gather 0    to 1            has all
    gather 1    to 2                         has all
    gather 2    to 3                                      has all

The sum is taken in the order of the workers, not of arrival, so it does not depend on time. The optimizer then steps
on every worker's own replica. Not to be confused with `downpour`, where no worker waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.algorithms.collectives import SIT_OUT, Part, Round, Step

ALL = (0, 1)  # the vector is not cut


@dataclass(frozen=True)
class Central:
    def segments(self, workers: int) -> int:
        return 1

    def steps(self, worker: int, workers: int) -> Iterator[Step]:
        for other in range(1, workers):
            if worker == 0:
                yield Step(None, Part(other, *ALL))
            else:
                yield Step(Part(0, *ALL), None) if worker == other else SIT_OUT
        for other in range(1, workers):
            if worker == 0:
                yield Step(Part(other, *ALL), None, False)
            else:
                yield Step(None, Part(0, *ALL), False) if worker == other else SIT_OUT

    def rounds(self, workers: int) -> Iterator[Round]:
        for other in range(1, workers):
            sends = [0] * workers
            sends[other] = 1
            yield Round(1, [other, *range(1, workers)], sends)
        for other in range(1, workers):
            sources = list(range(workers))
            sources[other] = 0
            yield Round(1, sources, [1] + [0] * (workers - 1))

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        return 2 * latency + 2 * (workers - 1) * size / bandwidth if workers > 1 else 0.0
