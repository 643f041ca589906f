"""Learners, which compute a worker's chunks of an update, and their sums; some hold a slice of each vector, too.

In a user-defined loop it has no data, and is given the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.collectives import segment_cuts
from paceline.algorithms.collectives.canonical import ChunkRange, join
from paceline.algorithms.coordinators import GRADIENT, PARAMETERS, Algebra, Axpy, Coordinator, Copy, Dot
from paceline.errors import NotFinite
from paceline.training.data.source import Reader
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.gradients.replica import Replica, clipped
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.worker_state import WorkerState

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

    def __init__(
        self,
        replica: Replica,
        reader: Reader | None = None,
        partial_sums: PartialSums | None = None,
        alone: bool = False,
    ) -> None:
        self.replica, self.reader = replica, reader
        #: What adds chunks up in the order of one tree; None where they add up as they are computed.
        self.partial_sums = partial_sums
        #: Whether this worker steps by its own samples alone, so that they weigh as a whole batch does.
        self.alone = alone
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
        """Return the sums of subtrees; each chunk is computed and accepted alone, as another worker would."""
        if len(chunks) == 1 and sums.takes_leaves:
            start = self.buffers() if self.replica.job.on_nan == "skip" else []
            return self.accept(self.add_up([chunk for chunk in chunks if chunk.samples], start), chunks, start)
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


# Adding the chunks of a worker up in the order of the chunk tree: a learner's side of a canonical sum.
#
#     chunks 2 3 4 of 8      vectors, one below the other
#     ─────────────────      ────────────────────────────
#     2                      2
#     3                      2 | 3        two halves of a subtree: 2-3
#     4                      2-3 | 4      which are no halves: both go into the exchange
#
# Loss, weight and moving buffers are in the vectors, too: they are added in the same order, with the same rounding.


class PartialSums:
    """The sums of subtrees, from the first chunk of a worker to its last. Its vectors are used again in each update."""

    def __init__(self, layout: Layout, chunks: int, worker: int = 0, paces: int = 0) -> None:
        """Begin empty. With `paces`, one for each worker, this worker's seconds for a chunk are added with the rest."""
        self.layout, self.chunks, self._worker, self._paces = layout, chunks, worker, paces
        self._payloads: list[Payload] = []
        self._trees: list[ChunkRange] = []
        #: Of all chunks since `begin`.
        self._loss = self._weight = 0.0
        self._samples = self._parts = 0
        self._start = 0.0
        #: Whether a worker's only chunk is exchanged as it was computed: its sum, if there are others to add and none
        #: that is timed.
        self.takes_leaves = chunks > 1 and not paces

    def begin(self) -> None:
        """Forget all chunks."""
        self._trees.clear()
        self._start, self._parts = perf_counter(), 0
        self._loss = self._weight = 0.0
        self._samples = 0

    def add(self, part: int, computed: GradientSum) -> None:
        """Add a chunk of a part of the batch: the one after the last, or the last again, of the next batch."""
        again = bool(self._trees) and self._trees[-1].stop == part + 1
        if not again:
            self._join()
            self._parts += bool(computed.samples)
            self._trees.append(ChunkRange(part, part + 1))
        payload = self._payload(len(self._trees) - 1 + again)
        payload.write(computed)
        if again:
            self._payload(len(self._trees) - 1).flat.add_(payload.flat)
        self._loss, self._weight = self._loss + computed.loss, self._weight + computed.weight
        self._samples += computed.samples

    def end(self) -> GradientSum:
        """Return the sums of all chunks since `begin`."""
        self._join()
        if self._paces:
            paces = self._payload(0).paces
            paces.zero_()
            if self._parts:  # else nothing was computed that would tell a pace
                paces[self._worker] = (perf_counter() - self._start) / self._parts
        vectors = [payload.flat for payload in self._payloads[: len(self._trees)]]
        first = self._payload(0).read(self._samples)
        if len(vectors) == 1:
            return replace(first, part=self._trees[0].first, partial_sums=vectors)
        return replace(first, loss=self._loss, weight=self._weight, part=self._trees[0].first, partial_sums=vectors)

    def _join(self) -> None:
        """Add the last two subtrees up as long as they are the halves of one."""
        trees = self._trees
        while len(trees) > 1 and (tree := join(trees[-2], trees[-1], self.chunks)):
            trees[-2:] = [tree]
            self._payloads[len(trees) - 1].flat.add_(self._payloads[len(trees)].flat)

    def _payload(self, depth: int) -> Payload:
        while len(self._payloads) <= depth:
            flat = torch.zeros(Payload.room(self.layout, 1, self._paces), dtype=self.layout.dtype)
            self._payloads.append(Payload(self.layout, flat, paces=self._paces))
        return self._payloads[depth]


# What workers do under a programme. Each is a learner and a shard: it computes its chunks, and holds a slice of every
# vector.
#
#     parameters    | worker 0 | worker 1 | worker 2 |     whole in every replica while it evaluates
#     gradient      |    .     |    .     |    .     |
#     direction     |    .     |    .     |    .     |
#     s0, y0, ...   |    .     |    .     |    .     |
#
# The bits of a product depend on where vectors are cut, so everybody cuts them by the same rule, and sums the parts in
# the order of one table.


class VectorSlice:
    """One worker. All evaluations of an update start from the same moving buffers; those that the first one leaves are
    kept.
    """

    def __init__(self, learner: Learner, layout: Layout, coordinator: Coordinator, worker: int, workers: int) -> None:
        self.learner, (self.layout,) = learner, layout.shards
        self.parameters = [p.detach() for p in learner.replica.parameters]
        length = self.layout.buffers[0].start if self.layout.buffers else self.layout.length
        cuts = segment_cuts(length, workers, layout.bytes_per_number)
        self.slice = slice(cuts[worker], cuts[worker + 1])
        self.whole = torch.zeros(self.layout.length, dtype=layout.dtype)
        self.vectors = {name: torch.zeros_like(self.whole[self.slice]) for name in coordinator.vectors}
        self.load(PARAMETERS, self.parameters)
        self.buffers = [b.clone() for b in learner.replica.moving]
        self.kept: list[Tensor] | None = None  # none before the update's first evaluation

    def finalize(self, gradient: GradientSum) -> None:
        """Keep this worker's slice of the batch's gradient."""
        self.load(GRADIENT, self.learner.finalize(gradient))
        if self.kept is None:
            self.kept = [b.clone() for b in self.learner.replica.moving]
        self.learner.set_buffers(self.buffers)

    def load(self, name: str, tensors: Sequence[Tensor | None]) -> None:
        """Keep one's slice of a whole vector; a parameter without a gradient has zeros there."""
        for view, tensor in zip(self.layout.parameter_views(self.whole), tensors, strict=True):
            view.zero_() if tensor is None else view.copy_(tensor)
        self.vectors[name].copy_(self.whole[self.slice])

    def offer(self, flat: Tensor) -> None:
        """Lay down one's slice of the parameters, so that the sum of all workers' vectors is the whole."""
        flat.zero_()
        flat[self.slice] = self.vectors[PARAMETERS]

    def take(self, flat: Tensor) -> None:
        """Take the whole parameters into the replica."""
        for parameter, view in zip(self.parameters, self.layout.parameter_views(flat), strict=True):
            parameter.copy_(view)

    def perform(self, command: Algebra) -> None:
        target = self.vectors[command.target]
        if isinstance(command, Copy):
            target.copy_(self.vectors[command.source])
        elif isinstance(command, Axpy):
            target.add_(self.vectors[command.other], alpha=command.factor)
        else:
            target.mul_(command.factor)

    def dot(self, command: Dot) -> float:
        """This slice's part of the product, in float64 whatever the vectors are."""
        return float(torch.dot(self.vectors[command.one].double(), self.vectors[command.other].double()))

    def end(self) -> None:
        """The update is made."""
        assert self.kept is not None
        self.learner.set_buffers(self.kept)
        self.buffers, self.kept = self.kept, None

    def worker_state(self) -> WorkerState:
        """The worker's slices between two updates; the replica itself belongs to the learner."""
        return WorkerState({f"vector.{name}": vector for name, vector in self.vectors.items()})

    def restore(self, worker_state: WorkerState) -> None:
        for name, vector in self.vectors.items():
            vector.copy_(worker_state.tensors[f"vector.{name}"])
        self.buffers = [b.clone() for b in self.learner.replica.moving]
