"""A learner: a replica with its data, which computes a worker's chunks of an update under every plan.

In a user-defined loop it has no data, and is given the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paceline.algorithms.agenda import Chunk
from paceline.errors import NotFinite
from paceline.training.data.source import Reader
from paceline.training.gradients.partial_sums import PartialSums
from paceline.training.gradients.payload import GradientSum
from paceline.training.gradients.replica import Replica, clipped
from paceline.training.jobs.job import Job

ROUNDING = 1e-6  # of the weights of an update's chunks, whose sum is 1


def settled(job: Job, computed: GradientSum, alone: bool = False) -> GradientSum:
    """Return the sums over a whole batch as they are applied, but for clipping: divided by its weight."""
    partial = alone or job.loss_denominator is not None or (job.on_nan == "skip" and computed.weight < 1.0 - ROUNDING)
    if partial and computed.weight != 1.0:
        return computed.scaled(1.0 / computed.weight)
    return computed


def stated_weight(job: Job, computed: GradientSum) -> float:
    """Return what the loss of a gradient weighs in a mean where the job states it; -1: its samples."""
    left_out = not computed.weight and job.on_nan == "skip"
    return -1.0 if job.loss_denominator is None or left_out else computed.weight


class Learner:
    """Computes a worker's gradients, and settles those of a whole batch."""

    def __init__(self, replica: Replica, reader: Reader | None = None, partial_sums: PartialSums | None = None) -> None:
        self.replica, self.reader = replica, reader
        #: What adds chunks up in the order of one tree; None where they add up as they are computed.
        self.partial_sums = partial_sums
        #: Whether this worker steps by its own samples alone, so that they weigh as a whole batch does.
        self.alone = False
        #: Called with the gradients of each update before they are clipped.
        self.observe: Callable[[Sequence[Tensor | None]], None] | None = None
        self._moving = replica.moving
        self._dtype = replica.parameters[0].dtype

    def compute(self, chunks: list[Chunk]) -> GradientSum:
        """Return the weighted sum over these chunks. Each starts from the same buffers, as if all ran at once."""
        if self.partial_sums is not None:
            return self._by_tree(chunks, self.partial_sums)
        # Copies only where buffers have to be put back: for the next chunk, or because the gradient is left out.
        start = self.buffers() if len(chunks) > 1 or self.replica.job.on_nan == "skip" else []
        return self.accept(self.add_up(chunks, start), chunks, start)

    def _by_tree(self, chunks: list[Chunk], sums: PartialSums) -> GradientSum:
        """Return the sums of subtrees; each chunk is computed and accepted by itself, as anyone else would."""
        start = self.buffers()
        sums.begin()
        for number, chunk in enumerate(chunks):
            if number and start:
                torch._foreach_copy_(self._moving, start)
            computed = self.add_up([chunk] if chunk.samples else [], start)
            sums.add(chunk.number % sums.chunks, self.accept(computed, [chunk], start))
        return sums.end()

    def buffers(self) -> list[Tensor]:
        """Return copies of the moving buffers."""
        return [b.clone() for b in self._moving]

    def add_up(self, chunks: list[Chunk], start: list[Tensor]) -> GradientSum:
        """Return the weighted sum over these chunks, whatever it is; every chunk but the first starts from `start`."""
        assert self.reader is not None
        replica, loss, total, samples = self.replica, 0.0, 0.0, 0
        sums: list[Tensor] = []
        for number, chunk in enumerate(chunks):
            if number and start:
                torch._foreach_copy_(self._moving, start)
            batch = replica.gradients.batch(replica, self.reader, chunk)
            weight = replica.chunk_weight(chunk, batch)
            weight = 1.0 if weight and self.alone and len(chunks) == 1 else weight
            loss += weight * replica.backward(chunk, batch, weight)
            total += weight
            samples += chunk.samples
            if self._moving:
                # Weighted as the gradients are, so that a plain sum over all workers is the mean over the batch.
                mine = [b.to(self._dtype, copy=True).mul_(weight) for b in self._moving]
                sums = [a.add_(b) for a, b in zip(sums, mine, strict=True)] if sums else mine
        return GradientSum(replica.take(), sums, loss, total, samples, chunks[0].number if chunks else 0)

    def accept(self, computed: GradientSum, chunks: list[Chunk], start: list[Tensor]) -> GradientSum:
        """Return the sums over all chunks of an update; without weight, if they are not finite and the job skips that.

        Raises:
            NotFinite: the loss is not finite, and the job stops there.
        """
        assert self.reader is not None
        on_nan, loss = self.replica.job.on_nan, computed.loss
        if on_nan == "stop" and not math.isfinite(loss):  # a gradient that is not finite makes the next loss so
            raise NotFinite(loss, chunks[0].update, [n for c in chunks for n in self.reader.order.indices(c).tolist()])
        if on_nan == "skip" and not computed.finite():
            if start:
                torch._foreach_copy_(self._moving, start)
            return computed.left_out()
        return computed

    def finalize(self, computed: GradientSum, alone: bool = False) -> list[Tensor | None]:
        """Return the gradients to apply: divided by the batch's weight and clipped. The batch's buffers are taken over.

        With `alone` the sums are a part of the batch, from which this worker makes a step of its own.
        """
        if not computed.weight:
            return [None] * len(computed.gradients)
        computed = settled(self.replica.job, computed, alone)
        self.set_buffers(computed.buffers)
        if self.observe is not None:
            self.observe(computed.gradients)
        return clipped(computed.gradients, self.replica.job.gradient_clip_norm)

    def set_buffers(self, values: list[Tensor]) -> None:
        """Write the moving buffers; integers are rounded."""
        for buffer, value in zip(self._moving, values, strict=True):
            buffer.copy_(value if buffer.is_floating_point() else value.round())
