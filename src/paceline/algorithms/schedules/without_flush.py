"""Schedules whose pipeline never runs empty: older weights are stashed, or newer ones predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.algorithms.schedules import BACKWARD, FORWARD, UPDATE, StageLayout, Work, one_stage_each


@dataclass(frozen=True)
class Pipedream:
    """PipeDream: 1F1B without a flush. Every batch is an update of its own, and the pipeline never runs empty.

    Narayanan, Harlap et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019. A stage's
    backward must see the weights that its forward saw, so each stage stashes as many versions as it has batches in
    flight: p-s at stage s of p. Three workers, five batches; F3v1 reads version 1 of the stage's weights, which the
    gradient of batch 0 has made:

        tick       0   1   2   3   4   5     6     7     8     9     10    11    12
        worker 0   F0  F1  F2  .   .   B0U   F3v1  B1U   F4v2  B2U   .     B3v1U .     B4v2U
        worker 1   ...
        worker 2   .   .   F0  B0U F1v1 B1v1U ...

    The gradient of batch k is computed from version max(0, k-(p-1-s)), and applied to version k: stale by p-1-s
    updates.

    `buffers=two` is PipeDream-2BW (Narayanan et al., ICML 2021): gradients of m >= p micro-batches make an update,
    every stage holds two versions, and all compute batch t from version t-1, so that staleness is one everywhere.

    The paper also describes vertical sync (one version for all stages of a batch), which is not here. Not to be
    confused with 1F1B (PipeDream-Flush), which has the mathematics of one process.
    """

    two_buffers: bool = False
    name, span = "Pipedream", 0

    def layout(self, workers: int) -> StageLayout:
        stages = range(workers)
        return StageLayout(tuple(stages), tuple(2 if self.two_buffers else workers - stage for stage in stages))

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        batches = [batch for batch, count in enumerate(counts) for _ in range(count)]
        last = {batch: micro for micro, batch in enumerate(batches)}
        version, micro, read = 0, 0, dict[int, int]()
        for back in _alternating(workers - 1 - worker, len(batches)):
            if back is None:
                read[micro] = max(0, batches[micro] - 1) if self.two_buffers else version
                yield Work(worker, micro, FORWARD, read[micro])
                micro += 1
                continue
            yield Work(worker, back, BACKWARD, read.pop(back))
            if last[batches[back]] == back:
                version += 1
                yield Work(worker, back, UPDATE, version)


def _alternating(ahead: int, count: int) -> Iterator[int | None]:
    """None for the next forward, a micro-batch for its backward."""
    for micro in range(count + ahead):
        if micro < count:
            yield None
        if micro >= ahead:
            yield micro - ahead


@dataclass(frozen=True)
class Spectrain:
    """SpecTrain: PipeDream's order, with weights predicted instead of stashed.

    Chen, Yang and Cheng, "Efficient and robust parallel DNN training through model parallelism on multi-GPU platform",
    2018. Without a flush a forward reads weights that are s updates older than those its gradient will change. Under
    momentum the way they will go is known, so the forward reads

        W_hat = W - s * lr * v        v: the optimizer's momentum

    and the backward the newest weights. The paper gives s by a formula of the GPU's number; here it is taken from the
    table itself: the number of updates between the version that is read and the one that the gradient is applied to,
    which is the rule behind the formula. At stage k of p that is p-1-k for a forward in the steady state, fewer while
    the pipeline fills, and 0 for a backward, whose update follows at once. So a stage holds its weights once, and a
    copy to compute with.

        tick       0   1   2     3     4   ...
        worker 2   .   .   F0    B0U   F1v1         reads what it will change: nothing to predict
        worker 0   F0  F1  F2    .     .            while the pipeline fills, s is 0, 1, 2

    Needs an optimizer with momentum (SGD's momentum_buffer). Not to be confused with PipeDream, which computes an older
    gradient correctly; nor with XPipe, which predicts by Adam.
    """

    name, span = "Spectrain", 0

    def layout(self, workers: int) -> StageLayout:
        return one_stage_each(workers)._replace(predicts=True)

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        newest = 0
        for work in Pipedream().line(worker, workers, counts):
            yield work._replace(version=newest) if work.what == BACKWARD else work
            newest = work.version if work.what == UPDATE else newest
