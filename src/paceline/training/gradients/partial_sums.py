"""Adding the chunks of a worker up in the order of the chunk tree: a learner's side of a canonical sum.

    chunks 2 3 4 of 8      vectors, one below the other
    ─────────────────      ────────────────────────────
    2                      2
    3                      2 | 3        two halves of a subtree: 2-3
    4                      2-3 | 4      which are no halves: both go into the exchange

Loss, weight and moving buffers are in the vectors, too: they are added in the same order, with the same rounding.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import torch

from paceline.algorithms.collectives.canonical import Run, join
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.layout import Layout


class PartialSums:
    """The sums of subtrees, from the first chunk of a worker to its last. Its vectors are used again in each update."""

    def __init__(self, layout: Layout, chunks: int, worker: int = 0, paces: int = 0) -> None:
        """With `paces`, one for each worker, the seconds that this worker takes for a chunk are added with the rest."""
        self.layout, self.chunks, self._worker, self._paces = layout, chunks, worker, paces
        self._payloads: list[Payload] = []
        self._trees: list[Run] = []
        #: Of all chunks since `begin`.
        self._loss = self._weight = 0.0
        self._samples = self._parts = 0
        self._start = 0.0

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
            self._trees.append(Run(part, part + 1))
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
        while len(trees) > 1 and (whole := join(trees[-2], trees[-1], self.chunks)):
            trees[-2:] = [whole]
            self._payloads[len(trees) - 1].flat.add_(self._payloads[len(trees)].flat)

    def _payload(self, depth: int) -> Payload:
        while len(self._payloads) <= depth:
            flat = torch.zeros(Payload.room(self.layout, 1, self._paces), dtype=self.layout.dtype)
            self._payloads.append(Payload(self.layout, flat, paces=self._paces))
        return self._payloads[depth]
