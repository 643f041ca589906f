"""Interleaved 1F1B: every worker holds several stages, spread over the depth, so the pipeline fills sooner.

Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021. Two
workers with two stages each (worker 0 holds 0 and 2, worker 1 holds 1 and 3), four micro-batches; F2.1 is the forward
of micro-batch 2 through stage 1:

    tick       0     1     2     3     4     5     6     7     8     9     10    11    12    13    14    15    16
    worker 0   F0.0  F1.0  F0.2  F1.2  F2.0  B0.2  F3.0  B1.2  F2.2  B0.0  F3.2  B1.0  .     B2.2  .     B3.2  ...

(drawn in full by `paceline draw interleaved`). With v stages each, the bubble is (p-1)/(v m+p-1) instead of
(p-1)/(m+p-1), for v times as many messages. The published order takes micro-batches in groups of p; a last group that
is not full is ordered as if it were, and what does not exist is left out. Also called virtual pipeline stages, looped
pipeline (Breadth-first pipelines are another order over the same stages).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.algorithms.schedules import BACKWARD, FORWARD, UPDATE, StageLayout, Work


@dataclass(frozen=True)
class Interleaved:
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
