"""1F1B: as many forwards as fill the pipeline, then one forward and one backward alternately.

Narayanan et al., "Memory-efficient pipeline-parallel DNN training", ICML 2021 (PipeDream-Flush); the order is
PipeDream's. Three workers, four micro-batches:

    tick       0   1   2   3   4   5   6   7   8   9   10  11
    worker 0   F0  F1  F2  .   .   B0  F3  B1  .   B2  .   B3U
    worker 1   .   F0  F1  .   B0  F2  B1  F3  B2  .   B3U .
    worker 2   .   .   F0  B0  F1  B1  F2  B2  F3  B3U .   .

The bubble is GPipe's, (p-1)/(m+p-1); the activations kept at stage s are those of min(m, p-s) micro-batches instead of
m. Also called DAPPLE's early backward. Not to be confused with PipeDream, which does not wait for the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.algorithms.schedules import BACKWARD, FORWARD, UPDATE, StageLayout, Work, one_stage_each


@dataclass(frozen=True)
class OneFOneB:
    name, span = "OneFOneB", 1

    def layout(self, workers: int) -> StageLayout:
        return one_stage_each(workers)

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        (count,) = counts
        ahead = workers - 1 - worker
        for micro in range(count + ahead):
            if micro < count:
                yield Work(worker, micro, FORWARD)
            if 0 <= micro - ahead < count:
                yield Work(worker, micro - ahead, BACKWARD)
        yield Work(worker, count - 1, UPDATE, 1)
