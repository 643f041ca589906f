"""Zero bubble (ZB-H1): backward in two halves; the half that no stage waits for fills the gaps.

Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR 2024. The stage before waits only for the gradients of
inputs (I); those of weights (W) can wait themselves. Three workers, four micro-batches:

    tick       0   1   2   3   4   5   6   7   8   9   10  11  12  13
    worker 0   F0  F1  F2  .   .   I0  W0  F3  I1  W1  I2  W2  I3  W3U
    worker 1   .   F0  F1  .   I0  F2  I1  W0  F3  I2  W1  I3  W2  W3U
    worker 2   .   .   F0  I0  F1  I1  F2  I2  W0  F3  I3  W1  W2  W3U

With F, I and W of equal cost the bubble is p-1 ticks of 3m+p-1, a third of 1F1B's (3(p-1) of 3m+3(p-1)). Every worker
keeps the activations of at most p micro-batches, as many as 1F1B's first. ZB-H2 and the variants without any bubble
fill the rest by updating before the whole gradient is known to be good; they are not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.algorithms.schedules import FORWARD, INPUTS, UPDATE, WEIGHTS, StageLayout, Work, one_stage_each


@dataclass(frozen=True)
class ZeroBubble:
    name, span = "ZeroBubble", 1

    def layout(self, workers: int) -> StageLayout:
        return one_stage_each(workers)

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        (count,) = counts
        ahead, late, done = workers - 1 - worker, worker, 0  # weights wait for as many gradients as stages came before
        for micro in range(count + ahead):
            if micro < count:
                yield Work(worker, micro, FORWARD)
            if 0 <= micro - ahead < count:
                yield Work(worker, micro - ahead, INPUTS)
                if micro - ahead >= late:
                    yield Work(worker, done, WEIGHTS)
                    done += 1
        for micro in range(done, count):
            yield Work(worker, micro, WEIGHTS)
        yield Work(worker, count - 1, UPDATE, 1)
