"""The sum of two workers' gradients: each reads the other's vector where it lies.

    worker 0                                        worker 1
    ────────                                        ────────
    writes its vector ──offer──▶     ◀──offer── writes its vector
    reads both                                      reads both

A table cuts the vector into segments that one worker adds and the other copies, in two steps, and the optimizer reads
the result once more. Here two workers move as many bytes in one step, wait once, and add the same two numbers, so the
bits are the table's. The sum lies in a third vector, because the other worker still reads the first, or nowhere: where
generated code makes the optimizer's step, it adds as it goes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.engines.local.collectives import PayloadReduction, Sums
from paceline.gradients.native_step import NativeStep
from paceline.gradients.payload import GradientSum, Payload
from paceline.jobs.job import Job
from paceline.links import TURNS, Span
from paceline.links.shared_memory_link import SharedMemoryLink
from paceline.parameters.layout import Layout
from paceline.parameters.store import LocalStore


class Met(NamedTuple):
    """What both workers have of one update."""

    number: int
    mine: Payload
    theirs: Tensor
    waited: int


def paired(sums: Sums, layout: Layout, job: Job, store: LocalStore) -> PairSum | None:
    """Return the sum of two workers that compute by PyTorch; None for other groups.

    Workers in generated code walk the table, and may meet one in Python.
    """
    if not isinstance(sums, PayloadReduction) or not isinstance(link := sums.reduction.link, SharedMemoryLink):
        return None
    if len(link.counts) != 2 or job.compute != "autograd":
        return None
    return PairSum(sums, link, layout, job, store)


class PairSum:
    """Sums the gradients of this worker and the only other one."""

    def __init__(
        self, sums: PayloadReduction, link: SharedMemoryLink, layout: Layout, job: Job, store: LocalStore
    ) -> None:
        self.link, self.payloads, self.bytes, self.store = link, sums.payloads, sums.bytes, store
        self._whole = [Span(turn, 0, len(link.vectors[turn])) for turn in range(TURNS)]
        vectors, tail = link.shared_with(1 - link.rank).vectors, len(self.payloads[0].tail)
        #: The other worker's gradients, and the tail behind them, in each of its vectors.
        self._theirs = [(layout.shards[0].parameter_views(vector), vector[-tail:]) for vector in vectors]
        self._sum = Payload(layout, torch.zeros_like(link.vectors[0]))
        stepper = store.stepper if isinstance(store.stepper, NativeStep) and store.stepper.adds() else None
        changed = job.gradient_clip_norm is not None or job.loss_denominator is not None or job.on_nan == "skip"
        #: Whether the step may read two gradients that nothing has to see or change before.
        self._at_once = stepper is not None and not changed and not layout.buffers

    def meet(self, number: int, computed: GradientSum) -> Met:
        """Write this worker's vector, and wait for the other's."""
        turn, link, before = number % TURNS, self.link, self.link.waited
        self.payloads[turn].write(computed)
        link.offer(1 - link.rank, self._whole[turn])
        theirs = link.take(1 - link.rank, self._whole[turn])
        return Met(number, self.payloads[turn], theirs, link.waited - before)

    def add(self, met: Met, samples: int) -> GradientSum:
        """Return the sum."""
        torch.add(met.mine.flat, met.theirs, out=self._sum.flat)
        return self._sum.read(samples)

    def step(self, met: Met) -> float | None:
        """Step by the sum without making it, and return the mean loss; None where it has to be made."""
        if not self._at_once:
            return None
        theirs, tail = self._theirs[met.number % TURNS]
        *present, loss, weight = (met.mine.tail + tail).tolist()
        if not all(present):
            return None
        self.store.step(met.mine.gradients, theirs)
        return float(loss / weight)
