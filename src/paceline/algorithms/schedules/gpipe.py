"""GPipe: all forwards, then all backwards, then the update.

Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019. Three
workers, four micro-batches:

    tick       0   1   2   3   4   5   6   7   8   9   10  11
    worker 0   F0  F1  F2  F3  .   .   .   .   B3  B2  B1  B0U
    worker 1   .   F0  F1  F2  F3  .   .   B3  B2  B1  B0U .
    worker 2   .   .   F0  F1  F2  F3  B3  B2  B1  B0U .   .

With p stages of equal cost and m micro-batches each worker idles for (p-1)/(m+p-1) of the time, and keeps the
activations of all m. The paper also recomputes activations, which is an option of every schedule here (`recompute`).
Also called fill-drain. Not to be confused with 1F1B, which has the same bubble and keeps fewer activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.algorithms.schedules import BACKWARD, FORWARD, UPDATE, StageLayout, Work, one_stage_each


@dataclass(frozen=True)
class Gpipe:
    name, span = "Gpipe", 1

    def layout(self, workers: int) -> StageLayout:
        return one_stage_each(workers)

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        (count,) = counts
        for micro in range(count):
            yield Work(worker, micro, FORWARD)
        for micro in reversed(range(count)):
            yield Work(worker, micro, BACKWARD)
        yield Work(worker, count - 1, UPDATE, 1)
