"""All-reduce towards one worker and back: along a tree, or from all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.algorithms.collectives import SIT_OUT, Part, Round, Step

ALL = (0, 1)


@dataclass(frozen=True)
class Tree:
    """Tree all-reduce: a binomial tree up to worker 0, then down again.

    The reduce and broadcast of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", IJHPCA 2005. About 2 log2(P) steps, each of the whole vector: best for short vectors, where latency is all.
    Six workers; every arrow is the whole vector, partial sums going up and the sum coming down:

        up 0      1 -> 0    3 -> 2    5 -> 4
        up 1      2 -> 0
        up 2      4 -> 0
        down 0    0 -> 4
        down 1    0 -> 2
        down 2    0 -> 1    2 -> 3    4 -> 5

    Not to be confused with NCCL's double binary tree, which pipelines two trees over segments.
    """

    def segments(self, workers: int) -> int:
        return 1

    def steps(self, worker: int, workers: int) -> Iterator[Step]:
        depth = (workers - 1).bit_length()
        for level in range(depth):
            child, parent = _edge(worker, workers, level)
            if child is not None:
                yield Step(None, Part(child, *ALL))
            else:
                yield Step(Part(parent, *ALL), None) if parent is not None else SIT_OUT
        for level in reversed(range(depth)):
            child, parent = _edge(worker, workers, level)
            if child is not None:
                yield Step(Part(child, *ALL), None, False)
            else:
                yield Step(None, Part(parent, *ALL), False) if parent is not None else SIT_OUT

    def rounds(self, workers: int) -> Iterator[Round]:
        depth = (workers - 1).bit_length()
        levels = [[_edge(worker, workers, level) for worker in range(workers)] for level in range(depth)]
        for edges in levels:
            children = [worker if child is None else child for worker, (child, _) in enumerate(edges)]
            yield Round(1, children, [int(parent is not None) for _, parent in edges])
        for edges in reversed(levels):
            parents = [worker if parent is None else parent for worker, (_, parent) in enumerate(edges)]
            yield Round(1, parents, [int(child is not None) for child, _ in edges])

    def seconds(self, workers: int, size: float, latency: float, bandwidth: float) -> float:
        """Return the table's time.

        On the way down, a 1 in a worker's number is a message on its way from worker 0, and a 0 a message that its
        ancestor sends to another worker first. The last to be reached is one of those whose number ends in ones.
        """
        depth, send = (workers - 1).bit_length(), size / bandwidth
        end = workers - 1
        last = [end, *(end >> bit + 1 << bit + 1 | (1 << bit) - 1 for bit in range(depth) if end >> bit & 1)]
        down = max(self._down(worker, workers, depth, latency + send, send) for worker in last)
        return self._up(workers, latency, send) + down

    def _up(self, workers: int, latency: float, send: float) -> float:
        """Return the time of the reduction. The tree's upper half joins worker 0 by its last edge and may be early."""
        if workers == 1:
            return 0.0
        lower = 1 << (workers - 1).bit_length() - 1
        below = (lower.bit_length() - 1) * (latency + send)
        return max(below, self._up(workers - lower, latency, send) + latency) + send

    def _down(self, worker: int, workers: int, depth: int, message: float, send: float) -> float:
        time, reached = 0.0, 0
        for bit in reversed(range(depth)):
            if worker >> bit & 1:
                time, reached = time + message, reached | 1 << bit
            elif reached | 1 << bit < workers:
                time += send
        return time


def _edge(worker: int, workers: int, level: int) -> tuple[int | None, int | None]:
    """Return the (child, parent) that this worker has on a level of the tree."""
    if worker % (1 << level):
        return None, None
    if worker >> level & 1:
        return None, worker - (1 << level)
    child = worker + (1 << level)
    return (child, None) if child < workers else (None, None)


@dataclass(frozen=True)
class Central:
    """Central all-reduce: all workers send their vectors to one, which adds them up and sends the sum to all.

    The synchronous parameter server of Li et al., "Scaling distributed machine learning with the parameter server",
    OSDI 2014, and of Chen et al., "Revisiting distributed synchronous SGD", 2016, with worker 0 as the server. Few
    messages in a row, but 2 (P-1) vectors through the links of one: the reason why rings were invented. Four workers:

        step        worker 0        worker 1     worker 2     worker 3
        reduce 0    adds that of    to 0
        reduce 1    adds that of                 to 0
        reduce 2    adds that of                              to 0
        gather 0    to 1            has all
        gather 1    to 2                         has all
        gather 2    to 3                                      has all

    The sum is taken in the order of the workers, not of arrival, so it does not depend on time. The optimizer then
    steps on every worker's own replica. Not to be confused with `downpour`, where no worker waits.
    """

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
