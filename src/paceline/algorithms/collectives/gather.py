"""Gather: every worker sends its own message to every other one, and all end with all of them.

The direct all-gather: no message is forwarded, so it takes one latency and P - 1 messages through the link of each
worker. What cannot be summed on its way, such as most coded gradients, is exchanged so, and each worker sums what
it has decoded in the order of the workers. Three workers:

    step        worker 0        worker 1        worker 2
    0           a to 1          b to 2          c to 0
    1           a to 2          b to 0          c to 1

Its bytes grow with the number of workers; those of a ring do not. Not to be confused with the second half of a ring,
which forwards, and takes P - 1 steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.algorithms.collectives import Part, Round, Step


@dataclass(frozen=True)
class Gather:
    """Segment w is the message of worker w."""

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
