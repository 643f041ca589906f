"""A collective that generated code walks: the table of a `Reduction`, and the memory of its link.

    Reduction, payload, waiter        one update of a call, in generated code
    ──────────────────────────        ──────────────────────────────────────
    the table's steps      ────────▶  whom to offer to, whom to take from, what to add
    SharedMemoryLink       ◀───────▶  counters, doorbells, vectors: the same memory
    Waiter                 ────────▶  how long to spin, when it is too late

A worker in generated code and one in Python keep step: each update has its own collective, by the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.collectives.canonical import Run, joins_of
from paceline.kernels.exchange import MOVE, PEER, PIECE, Ended, GradientExchange, Waits, places_of
from paceline.runtime.engines.workers.collectives import PayloadReduction, Sums
from paceline.runtime.links import futex
from paceline.runtime.links.shared_memory_link import SharedMemoryLink
from paceline.runtime.links.waiting import NAP_SECONDS, Cancelled, Waiter
from paceline.training.parameters.layout import Layout


def native_sum(
    sums: Sums,
    layout: Layout,
    gradients: Mapping[str, Tensor],
    memory: Tensor,
    waiter: Waiter,
    cancelled: memoryview,
    chunks: int = 0,
) -> NativeSum | None:
    """Return the sum as generated code makes it; None where vectors do not lie in memory that workers share.

    Args:
        sums: the same sum in Python.
        layout: of the vectors.
        gradients: by the names of parameters, as views of `memory`.
        memory: where generated code leaves a gradient and takes the sum from.
        waiter: how this worker waits.
        cancelled: one integer, which is not 0 when the run has been cancelled.
        chunks: of a batch, where they are summed in the order of one tree; 0 for one chunk of each worker.
    """
    if not isinstance(sums, PayloadReduction) or not isinstance(link := sums.reduction.link, SharedMemoryLink):
        return None
    if layout.buffers:  # batch-norm's statistics travel, too
        return None
    (shard,) = layout.shards
    places = places_of(gradients, memory, {span.name: span.start for span in shard.parameters})
    if places is None or waiter.doorbell is None:
        return None
    waits = Waits(
        waiter.doorbell.address,
        futex.address_of(cancelled),
        futex.address_of(link.aborted),
        waiter.spin.nanoseconds,
        int(NAP_SECONDS * 1e9),
        int(waiter.deadline * 1e9),
    )
    return NativeSum(sums, link, places, shard.length, waiter, waits, chunks)


class NativeSum:
    """The sum of all workers' gradients, as a call of generated code makes it in every update."""

    def __init__(
        self,
        sums: PayloadReduction,
        link: SharedMemoryLink,
        places: np.ndarray,
        tail: int,
        waiter: Waiter,
        waits: Waits,
        chunks: int,
    ) -> None:
        self.link, self.waiter, self.bytes, self._chunks = link, waiter, sums.bytes, chunks
        moves = np.array([tuple(move) for move in sums.reduction.table()], MOVE)
        self._peers = np.zeros(len(link.counts), PEER)
        for rank, row in enumerate(self._peers):
            shared = link.shared_with(rank)
            row["offered"], row["awaited"] = futex.address_of(shared.offered), futex.address_of(shared.awaited)
            row["doorbell"] = shared.doorbell.address
            row["vectors"] = [vector.data_ptr() for vector in shared.vectors]
        stride = sums.reduction.stride
        #: The partial sums: as many as lie beside each other before the exchange, or in it.
        local = torch.zeros(stride * (sums.reduction.lanes + chunks.bit_length()), dtype=link.vectors[0].dtype)
        offered = link.shared_with(link.rank).vectors
        self.exchange = GradientExchange.of(places, moves, self._peers, local, offered, stride, tail, waits)
        self._alive = (places, moves, local)  # the exchange has only their addresses
        self._first = 0

    def begin(self, number: int, pieces: Sequence[Chunk], stop_on_nan: bool) -> None:
        """Let generated code go on from the collective of this number, with these chunks of every update."""
        exchange, self._first = self.exchange, number
        run = Run(pieces[0].number, pieces[-1].number + 1)
        joins = joins_of(run, self._chunks) if self._chunks else [0]
        rows = [(c.samples, c.number, count, c.weight) for c, count in zip(pieces, joins, strict=True)]
        self._pieces = np.array(rows, PIECE)
        exchange.pieces, exchange.chunks = self._pieces.ctypes.data, len(rows)
        exchange.number, exchange.finite, exchange.ended = number, stop_on_nan, Ended.MADE
        self._peers["offers"], self._peers["taken"] = np.array(self.link.counts).T

    def end(self) -> int:
        """Go on from where generated code is; return how many collectives it has made."""
        self.link.counts = list(zip(self._peers["offers"].tolist(), self._peers["taken"].tolist(), strict=True))
        return int(self.exchange.number) - self._first

    def check(self) -> None:
        """Raise where generated code has waited for a peer in vain."""
        if self.exchange.ended == Ended.CANCELLED:
            raise Cancelled
        if self.exchange.ended == Ended.TOO_LATE:
            raise self.waiter.too_long(f"worker {self.exchange.whom}")
