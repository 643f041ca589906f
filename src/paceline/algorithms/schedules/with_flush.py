"""Schedules that run the pipeline empty before every update: the result is that of one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.algorithms.schedules import BACKWARD, FORWARD, INPUTS, UPDATE, WEIGHTS, StageLayout, Work, one_stage_each


@dataclass(frozen=True)
class Layers:
    """Layers: the model cut by depth, one micro-batch after the other; forward and backward travel like a linked list.

    Plain model parallelism, as in Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014),
    before it was pipelined. Stages may be at any worker, in any order. Stages 0 and 2 at worker 0, 1 and 3 at worker 1
    (`on=0+1+0+1`), one micro-batch; where a worker has several stages, the picture says which one is meant:

        tick       0     1     2     3     4     5     6     7
        worker 0   F0.0  .     F0.2  .     .     B0.2  .     B0.0U
        worker 1   .     F0.1  .     F0.3  B0.3  .     B0.1U .

    Only one worker computes at a time: it saves memory, not time. Use it to train a model that fits on no single
    worker.
    """

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


@dataclass(frozen=True)
class Gpipe:
    """GPipe: all forwards, then all backwards, then the update.

    Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019. Three
    workers, four micro-batches:

        tick       0   1   2   3   4   5   6   7   8   9   10  11
        worker 0   F0  F1  F2  F3  .   .   .   .   B3  B2  B1  B0U
        worker 1   .   F0  F1  F2  F3  .   .   B3  B2  B1  B0U .
        worker 2   .   .   F0  F1  F2  F3  B3  B2  B1  B0U .   .

    With p stages of equal cost and m micro-batches each worker idles for (p-1)/(m+p-1) of the time, and keeps the
    activations of all m. The paper also recomputes activations, which is an option of every schedule here
    (`recompute`). Also called fill-drain. Not to be confused with 1F1B, which has the same bubble and keeps fewer
    activations.
    """

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


@dataclass(frozen=True)
class OneFOneB:
    """1F1B: as many forwards as fill the pipeline, then one forward and one backward alternately.

    Narayanan et al., "Memory-efficient pipeline-parallel DNN training", ICML 2021 (PipeDream-Flush); the order is
    PipeDream's. Three workers, four micro-batches:

        tick       0   1   2   3   4   5   6   7   8   9   10  11
        worker 0   F0  F1  F2  .   .   B0  F3  B1  .   B2  .   B3U
        worker 1   .   F0  F1  .   B0  F2  B1  F3  B2  .   B3U .
        worker 2   .   .   F0  B0  F1  B1  F2  B2  F3  B3U .   .

    The bubble is GPipe's, (p-1)/(m+p-1); the activations kept at stage s are those of min(m, p-s) micro-batches instead
    of m. Also called DAPPLE's early backward. Not to be confused with PipeDream, which does not wait for the update.
    """

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


@dataclass(frozen=True)
class Interleaved:
    """Interleaved 1F1B: every worker holds several stages, spread over the depth, so the pipeline fills sooner.

    Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021. Two
    workers with two stages each (worker 0 holds 0 and 2, worker 1 holds 1 and 3), four micro-batches; F2.1 is the
    forward of micro-batch 2 through stage 1:

        tick       0     1     2     3     4     5     6     7     8     9     10    11    12    13    14    15    16
        worker 0   F0.0  F1.0  F0.2  F1.2  F2.0  B0.2  F3.0  B1.2  F2.2  B0.0  F3.2  B1.0  .     B2.2  .     B3.2  ...

    (drawn in full by `paceline draw interleaved`). With v stages each, the bubble is (p-1)/(v m+p-1) instead of
    (p-1)/(m+p-1), for v times as many messages. The published order takes micro-batches in groups of p; a last group
    that is not full is ordered as if it were, and what does not exist is left out. Also called virtual pipeline stages,
    looped pipeline (Breadth-first pipelines are another order over the same stages).
    """

    each: int = 2  # stages of every worker
    name, span = "Interleaved", 1

    def layout(self, workers: int) -> StageLayout:
        return StageLayout(tuple(range(workers)) * self.each, (1,) * workers * self.each)

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        (count,) = counts
        full = -(-count // workers) * workers
        forwards = list(self._visits(worker, workers, full, range(self.each), FORWARD))
        backwards = list(self._visits(worker, workers, full, reversed(range(self.each)), BACKWARD))
        ahead = min(2 * (workers - 1 - worker) + (self.each - 1) * workers, len(forwards))
        order = [*forwards[:ahead]]
        for place, backward in enumerate(backwards):
            order += [*forwards[ahead + place : ahead + place + 1], backward]
        last = {work.stage: work for work in order if work.what == BACKWARD and work.micro < count}
        for work in order:
            if work.micro < count:
                yield work
                if last.get(work.stage) == work:
                    yield Work(work.stage, count - 1, UPDATE, 1)

    def _visits(
        self, worker: int, workers: int, full: int, rounds: Sequence[int] | Iterator[int], what: str
    ) -> Iterator[Work]:
        """Group by group: the group through one stage, then through the next."""
        stages = [worker + workers * turn for turn in rounds]
        for first in range(0, full, workers):
            for stage in stages:
                for micro in range(first, first + workers):
                    yield Work(stage, micro, what)


@dataclass(frozen=True)
class ZeroBubble:
    """Zero bubble (ZB-H1): backward in two halves; the half that no stage waits for fills the gaps.

    Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR 2024. The stage before waits only for the gradients
    of inputs (I); those of weights (W) can wait themselves. Three workers, four micro-batches:

        tick       0   1   2   3   4   5   6   7   8   9   10  11  12  13
        worker 0   F0  F1  F2  .   .   I0  W0  F3  I1  W1  I2  W2  I3  W3U
        worker 1   .   F0  F1  .   I0  F2  I1  W0  F3  I2  W1  I3  W2  W3U
        worker 2   .   .   F0  I0  F1  I1  F2  I2  W0  F3  I3  W1  W2  W3U

    With F, I and W of equal cost the bubble is p-1 ticks of 3m+p-1, a third of 1F1B's (3(p-1) of 3m+3(p-1)). Every
    worker keeps the activations of at most p micro-batches, as many as 1F1B's first. ZB-H2 and the variants without any
    bubble fill the rest by updating before the whole gradient is known to be good; they are not here.
    """

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
