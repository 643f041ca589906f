"""Exchanges of whole vectors: with neighbours on a graph, or with everyone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.algorithms.collectives import Part, Round, Step

ALL = (0, 1)  # the vector is not cut
GRAPHS = ("ring", "exponential", "complete")


@dataclass(frozen=True)
class Neighbours:
    """Neighbours on a graph: each worker sends its whole vector to a few others and mixes what it gets with its own.

        mine  <-  (mine + sum of the neighbours') / (neighbours + 1)

    The collective of decentralised training (Lian et al., NeurIPS 2017; `rules/d_psgd.py`); also known as gossip
    averaging. After one exchange no worker has the mean of all, but the mean has not changed, and every worker is
    nearer to it, by the second largest eigenvalue of the weights. The graphs are circulant, so every worker has the
    same number of neighbours and the weights are doubly stochastic:

        ring          the two next to it
        exponential   those 1, 2, 4, 8 ... away on both sides (Assran et al., "Stochastic gradient push", ICML 2019)
        complete      all: the mean itself

    Not to be confused with ring all-reduce, after which every worker has the exact mean.
    """

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


@dataclass(frozen=True)
class Gather:
    """Gather: every worker sends its own message to every other one, and all end with all of them.

    The direct all-gather: no message is forwarded, so it takes one latency and P - 1 messages through the link of each
    worker. What cannot be summed on its way, such as most coded gradients, is exchanged so, and each worker sums what
    it has decoded in the order of the workers. Three workers:

        step        worker 0        worker 1        worker 2
        0           a to 1          b to 2          c to 0
        1           a to 2          b to 0          c to 1

    Its bytes grow with the number of workers; those of a ring do not. Not to be confused with the second half of a
    ring, which forwards, and takes P - 1 steps.

    Segment w is the message of worker w.
    """

    def segments(self, workers: int) -> int:
        return workers

    def steps(self, worker: int, workers: int) -> Iterator[Step]:
        for away in range(1, workers):
            to, other = (worker + away) % workers, (worker - away) % workers
            yield Step(Part(to, worker, worker + 1), Part(other, other, other + 1), False)

    def rounds(self, workers: int) -> Iterator[Round]:
        for away in range(1, workers):
            yield Round(1, [(worker - away) % workers for worker in range(workers)], [1] * workers)

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        """Return the time of messages of `size` bytes in all: a worker's own are sent one after the other."""
        return latency + (workers - 1) * size / workers / bandwidth if workers > 1 else 0.0
