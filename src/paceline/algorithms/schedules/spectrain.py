"""SpecTrain: PipeDream's order, with weights predicted instead of stashed.

Chen, Yang and Cheng, "Efficient and robust parallel DNN training through model parallelism on multi-GPU platform",
2018. Without a flush a forward reads weights that are s updates older than those its gradient will change. Under
momentum the way they will go is known, so the forward reads

    W_hat = W - s * lr * v        v: the optimizer's momentum

and the backward the newest weights. The paper gives s by a formula of the GPU's number; here it is taken from the
table itself: the number of updates between the version that is read and the one that the gradient is applied to, which
is the rule behind the formula. At stage k of p that is p-1-k for a forward in the steady state, fewer while the
pipeline fills, and 0 for a backward, whose update follows at once. So a stage holds its weights once, and a copy to
compute with.

    tick       0   1   2     3     4   ...
    worker 2   .   .   F0    B0U   F1v1         reads what it will change: nothing to predict
    worker 0   F0  F1  F2    .     .            while the pipeline fills, s is 0, 1, 2

Needs an optimizer with momentum (SGD's momentum_buffer). Not to be confused with PipeDream, which computes an older
gradient correctly; nor with XPipe, which predicts by Adam.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.algorithms.schedules import BACKWARD, UPDATE, StageLayout, Work, one_stage_each
from paceline.algorithms.schedules.pipedream import Pipedream


@dataclass(frozen=True)
class Spectrain:
    name, span = "Spectrain", 0

    def layout(self, workers: int) -> StageLayout:
        return one_stage_each(workers)._replace(predicts=True)

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        newest = 0
        for work in Pipedream().line(worker, workers, counts):
            yield work._replace(version=newest) if work.what == BACKWARD else work
            newest = work.version if work.what == UPDATE else newest
