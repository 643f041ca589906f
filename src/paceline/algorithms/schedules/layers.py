"""Layers: the model cut by depth, one micro-batch after the other; forward and backward travel like a linked list.

Plain model parallelism, as in Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014),
before it was pipelined. Stages may be at any worker, in any order. Stages 0 and 2 at worker 0, 1 and 3 at worker 1
(`on=0+1+0+1`), one micro-batch; where a worker has several stages, the picture says which one is meant:

    tick       0     1     2     3     4     5     6     7
    worker 0   F0.0  .     F0.2  .     .     B0.2  .     B0.0U
    worker 1   .     F0.1  .     F0.3  B0.3  .     B0.1U .

Only one worker computes at a time: it saves memory, not time. Use it to train a model that fits on no single worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.algorithms.schedules import BACKWARD, FORWARD, UPDATE, StageLayout, Work


@dataclass(frozen=True)
class Layers:
    on: tuple[int, ...] = ()  # the worker of each stage; empty: stage s at worker s
    name, span = "Layers", 1

    def layout(self, workers: int) -> StageLayout:
        on = self.on or tuple(range(workers))
        return StageLayout(on, (1,) * len(on))

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        (count,) = counts
        mine = [stage for stage, holder in enumerate(self.layout(workers).stage_to_worker) if holder == worker]
        for micro in range(count):
            for stage in mine:
                yield Work(stage, micro, FORWARD)
            for stage in reversed(mine):
                yield Work(stage, micro, BACKWARD)
                if micro == count - 1:
                    yield Work(stage, micro, UPDATE, 1)
