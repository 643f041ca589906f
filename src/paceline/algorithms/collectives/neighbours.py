"""Neighbours on a graph: each worker sends its whole vector to a few others and mixes what it gets with its own.

    mine  <-  (mine + sum of the neighbours') / (neighbours + 1)

The collective of decentralised training (Lian et al., NeurIPS 2017; `rules/d_psgd.py`); also known as gossip averaging.
After one exchange no worker has the mean of all, but the mean has not changed, and every worker is nearer to it, by the
second largest eigenvalue of the weights. The graphs are circulant, so every worker has the same number of neighbours
and the weights are doubly stochastic:

    ring          the two next to it
    exponential   those 1, 2, 4, 8 ... away on both sides (Assran et al., "Stochastic gradient push", ICML 2019)
    complete      all: the mean itself

Not to be confused with ring all-reduce, after which every worker has the exact mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.algorithms.collectives import Part, Round, Step

ALL = (0, 1)  # the vector is not cut
GRAPHS = ("ring", "exponential", "complete")


@dataclass(frozen=True)
class Neighbours:
    graph: str = "ring"

    def segments(self, workers: int) -> int:
        return 1

    def steps(self, worker: int, workers: int) -> Iterator[Step]:
        """Yield one exchange per distance. The mixture is made in other memory, so offers stay unchanged."""
        for away in self._distances(workers):
            yield Step(Part((worker + away) % workers, *ALL), Part((worker - away) % workers, *ALL))

    def weights(self, worker: int, workers: int) -> list[tuple[int, float]]:
        """Return (worker, weight of its vector), the worker's own first."""
        distances = self._distances(workers)
        share = 1.0 / (len(distances) + 1)
        return [(worker, share), *(((worker - away) % workers, share) for away in distances)]

    def rounds(self, workers: int) -> Iterator[Round]:
        for away in self._distances(workers):
            yield Round(1, [(worker - away) % workers for worker in range(workers)], [1] * workers)

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        return len(self._distances(workers)) * (latency + size / bandwidth)

    def _distances(self, workers: int) -> list[int]:
        if self.graph == "complete":
            return list(range(1, workers))
        near = [1] if self.graph == "ring" else [1 << bit for bit in range((workers // 2).bit_length())]
        return sorted({away % workers for step in near for away in (step, -step)} - {0})
