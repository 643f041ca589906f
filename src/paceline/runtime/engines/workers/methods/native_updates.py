"""Native updates: those that a worker makes in one call of generated code.

    the method's walk                  NativeUpdates                          generated code
    ─────────────────                  ─────────────                          ──────────────
    these updates are yours  ────────▶ up to the next checkpoint, snapshot
                                       or epoch, and for 20 ms at most ─────▶ order, dropout, gradient, optimizer
    so many are made         ◀──────── rows of the trace  ◀────────────────── a note of each update

Every update has the bits that it has alone: it draws what its number says, and is stepped by the same code. Where
workers add their gradients up, or mix their parameters, generated code does so between gradient and step
(`native_exchange`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns as now
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.collectives.canonical import ChunkRange, joins_of
from paceline.errors import NotFinite
from paceline.kernels.exchange import MOVE, PEER, PIECE, Ended, GradientExchange, Waits, places_of
from paceline.runtime.engines.workers.collectives import Means, NeighbourMixing, PayloadReduction
from paceline.runtime.engines.workers.methods.runner import GradientRequest, PlanRunner
from paceline.runtime.engines.workers.worker_context import REQUESTED, norm
from paceline.runtime.links import waiting
from paceline.runtime.links.shared_memory import SharedMemoryLink
from paceline.runtime.links.waiting import NAP_SECONDS, Cancelled, Waiter
from paceline.runtime.runs.trace import DTYPE, Columns, Kind
from paceline.training.gradients.fused_replica import FusedStep, clipping_of, readable
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.store import LocalStore

MOST = 4096  # updates of a call
FIRST = 16  # updates of the first call, which shows how long they take
NANOSECONDS = 20_000_000  # of a call: in between, checkpoints that were requested are seen


def native_updates(runner: PlanRunner, store: LocalStore, means: Means | None = None) -> NativeUpdates | None:
    """Return what makes the updates of a worker that steps this store; None where updates have to be made one by one.

    `means` is the collective of every update, where workers do not make updates alone.
    """
    job, reader = runner.job, runner.learner.reader
    if job.on_nan == "skip" or job.accumulate_grad_batches > 1 or runner.group.parts is None:
        return None
    if reader is None or not isinstance(store.stepper, FusedStep) or (means is not None and runner.encoder is not None):
        return None
    tensors = readable(store.stepper.fused, job, reader.source)
    if not tensors:
        return None
    native = NativeUpdates(runner, store, store.stepper, *tensors)
    if job.gradient_clip_norm is not None:
        native.loop.clipping = clipping_of(runner.replica, native.loop.resident.made)
        if native.loop.clipping is None:
            return None
    if means is not None:
        compiled = native.loop.resident.made
        memory, views = compiled.memory["gradients"], compiled.gradients
        waiter, cancelled, chunks = runner.waiter, runner.shared.cancelled, runner.plan.canonical
        native.collective = native_exchange(means, runner.layout, views, memory, waiter, cancelled, chunks)
        if native.collective is None:
            return None
        native.loop.exchange = native.collective.exchange
    return native


class NativeUpdates:
    """Makes the updates of one worker, as many as possible in one call."""

    def __init__(self, runner: PlanRunner, store: LocalStore, step: FusedStep, x: Tensor, y: Tensor) -> None:
        assert runner.learner.reader is not None
        self.runner, self.store, self.order = runner, store, runner.learner.reader.order
        self.loop = step.loop(x, y, runner.job.seed, np.frombuffer(runner.shared.doing, np.int64), MOST)
        compiled = self.loop.resident.made
        self._gradient = compiled.memory["gradients"][: compiled.plan.sizes["weights"]]
        #: What is exchanged in each update; None where this worker makes its updates alone.
        self.collective: NativeExchange | None = None
        #: The mean losses of the last call's updates: of all workers that add their gradients up.
        self.means: list[float] = []
        #: Updates of the next call, at most.
        self._most = FIRST
        #: The rows of each update, with what is the same in every call.
        self._rows = np.zeros((MOST, 3), DTYPE)
        self._rows["worker"] = runner.number
        self._rows["kind"] = Kind.COMPUTE, Kind.COLLECTIVE, Kind.APPLY
        self._rows["shard"] = -1, -1, 0
        self._rows["version"] = -1
        self._rows["weight"] = -1.0  # generated code computes no job with a denominator of its own

    def make(self, ahead: range, version: int) -> range:
        """Make the first of these updates, and return those that were made: none if this worker has no part in them.

        `version` is that of the parameters now; each update makes the next.
        """
        updates, start = self._next(ahead), now()
        chunks, last = self._chunks(updates[0]), self._chunks(updates[-1])
        if [(c.samples, c.weight) for c in chunks] != [(c.samples, c.weight) for c in last]:
            updates = updates[:-1]  # the last batch of an epoch is smaller; it gets a call of its own
        if not all(chunk.samples for chunk in chunks):
            return updates[:0]
        distance, first, stop = updates.step * self.runner.agenda.batch_size, chunks[0].start, chunks[-1].stop
        places = np.add.outer(np.arange(len(updates)) * distance, np.arange(first, stop)).ravel()
        order = self.order.samples(chunks[0].epoch, torch.from_numpy(places))
        if self.collective is not None:
            self.collective.begin(updates[0], chunks, self.runner.job.on_nan == "stop")
        notes = self.loop.make(order, stop - first, updates, chunks[0].number, self._settings(len(updates)))
        count = self.collective.end() if self.collective is not None else self._finite(notes)
        self.store.updates += count
        self._most = max(1, min(MOST, NANOSECONDS * len(updates) // (now() - start)))
        self._record(updates[:count], chunks, version, start, notes[:count])
        self.runner.meter.after_step(self._norm, updates[-1])
        if count < len(updates):
            self._fail(updates[count], version + count, float(notes["loss"][count]))
        return updates

    def _norm(self) -> float:
        """Return the norm of the last gradient, before it was clipped."""
        clipping = self.loop.clipping
        return norm([self._gradient]) if clipping is None else float(clipping.norm)

    def _next(self, ahead: range) -> range:
        """Return the first of these updates, after which no one has to look at this worker before the last of them."""
        runner, first = self.runner, ahead[0]
        periods = (runner.agenda.updates_per_epoch, runner.host.snapshots_every, runner.resume_point.checkpoint_every)
        updates = before(ahead, min((first // every + 1) * every for every in periods if every))[: self._most]
        runner.shared.reach[0] = updates[-1]
        # Read after the reach is known: a checkpoint that is requested from now on lies behind it.
        requested = runner.shared.checkpoints[REQUESTED]
        return before(updates, requested) if requested > first else updates

    def _chunks(self, update: int) -> list[Chunk]:
        """Return this worker's parts of an update, which lie side by side; some may hold no samples."""
        chunks, parts = self.runner.agenda.chunks(update), self.runner.group.parts
        assert parts is not None
        return [chunks[part] for part in parts] if len(chunks) > 1 else chunks

    def _settings(self, updates: int) -> Tensor:
        """Return the optimizer's settings in each of the next updates; a single row where there is no schedule."""
        schedule = self.store.schedule
        if schedule.scheduler is None:
            return torch.tensor([self.loop.resident.settings()], dtype=torch.float64)
        rows = []
        for update in range(updates):
            schedule.advance(self.store.updates + update)
            rows.append(self.loop.resident.settings())
        return torch.tensor(rows, dtype=torch.float64)

    def _finite(self, notes: Columns) -> int:
        """Return how many updates came before the first loss that ends the run; all, if none does."""
        finite = np.isfinite(notes["loss"])
        return len(notes) if self.runner.job.on_nan != "stop" or finite.all() else int(finite.argmin())

    def _fail(self, update: int, version: int, loss: float) -> NoReturn:
        """Say why this update could not be made; those before it are in the trace."""
        chunks = self._chunks(update)
        self.runner.doing(update)
        self.runner.due = GradientRequest(update, chunks, version)
        if self.collective is not None:
            self.collective.check()
        raise NotFinite(loss, update, [number for chunk in chunks for number in self.order.indices(chunk).tolist()])

    def _record(self, updates: range, chunks: Sequence[Chunk], version: int, start: int, notes: Columns) -> None:
        """Write the rows of each update: its gradient, its collective if there is one, and its step."""
        self.means = (notes["loss"] if self.collective is None else notes["mean"]).tolist()
        rows = self._rows[: len(updates)]
        computed, summed, applied = rows.T
        rows["update"] = np.array(updates)[:, None]
        rows["base"] = np.arange(version, version + len(updates))[:, None]
        applied["version"] = np.arange(version + 1, version + 1 + len(updates))
        computed["start"][:1], computed["start"][1:] = start, notes["applied"][:-1]
        computed["end"] = applied["start"] = notes["computed"]
        applied["end"] = notes["applied"]
        computed["samples"] = sum(chunk.samples for chunk in chunks)
        computed["value"] = notes["loss"]
        computed["waited"][:1], computed["waited"][1:] = self.runner.waited, 0
        self.runner.waited = 0
        if self.collective is not None:
            summed["start"], summed["end"], applied["start"] = notes["computed"], notes["summed"], notes["summed"]
            if not self.collective.exchange.share:  # where gradients are summed, as where updates are made one by one
                weight = sum(chunk.weight for chunk in chunks)
                computed["value"] = weight * notes["loss"] / weight
            summed["waited"], summed["bytes"] = notes["waited"], self.collective.bytes
        self.runner.record_rows(rows.ravel() if self.collective is not None else rows[:, ::2].ravel())


def before(updates: range, stop: int) -> range:
    """Return those of the updates that lie below `stop`."""
    return updates[: -(-(stop - updates[0]) // updates.step)]


# A collective that generated code walks: the table of a `Reduction`, and the memory of its link.
#
#     Reduction, payload, waiter        one update of a call, in generated code
#     ──────────────────────────        ──────────────────────────────────────
#     the table's steps      ────────▶  whom to offer to, whom to take from, what to add
#     SharedMemoryLink       ◀───────▶  counters, doorbells, vectors: the same memory
#     Waiter                 ────────▶  how long to spin, when it is too late
#
# A worker in generated code and one in Python keep step: each update has its own collective, by the same table.


def native_exchange(
    means: Means,
    layout: Layout,
    gradients: Mapping[str, Tensor],
    memory: Tensor,
    waiter: Waiter,
    cancelled: memoryview,
    chunks: int = 0,
) -> NativeExchange | None:
    """Return a collective as generated code walks it; None where vectors do not lie in memory that workers share.

    Args:
        means: the same collective in Python.
        layout: of the vectors.
        gradients: by the names of parameters, as views of `memory`.
        memory: where generated code leaves a gradient and takes the sum from; weights lie in theirs alike.
        waiter: how this worker waits.
        cancelled: one integer, which is not 0 when the run has been cancelled.
        chunks: of a batch, where they are summed in the order of one tree; 0 for one chunk of each worker.
    """
    if not isinstance(means, PayloadReduction | NeighbourMixing):
        return None
    if not isinstance(link := means.link, SharedMemoryLink):
        return None
    if means.share and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return None  # PyTorch rounds a product before it is added there, and generated code does not
    if layout.buffers:  # batch-norm's statistics travel, too
        return None
    (shard,) = layout.shards
    places = places_of(gradients, memory, {span.name: span.start for span in shard.parameters})
    if places is None or waiter.doorbell is None:
        return None
    waits = Waits(
        waiter.doorbell.address,
        waiting.address_of(cancelled),
        waiting.address_of(link.aborted),
        waiter.spin.nanoseconds,
        int(NAP_SECONDS * 1e9),
        int(waiter.deadline * 1e9),
    )
    return NativeExchange(means, link, places, shard.length, waiter, waits, chunks)


class NativeExchange:
    """What a call of generated code exchanges with other workers in every update."""

    def __init__(
        self,
        means: PayloadReduction | NeighbourMixing,
        link: SharedMemoryLink,
        places: np.ndarray,
        tail: int,
        waiter: Waiter,
        waits: Waits,
        chunks: int,
    ) -> None:
        self.link, self.waiter, self.bytes, self._chunks = link, waiter, means.bytes, chunks
        moves = np.array([tuple(move) for move in means.table()], MOVE)
        self._peers = np.zeros(len(link.counts), PEER)
        for rank, row in enumerate(self._peers):
            shared = link.shared_with(rank)
            row["offered"], row["awaited"] = waiting.address_of(shared.offered), waiting.address_of(shared.awaited)
            row["doorbell"] = shared.doorbell.address
            row["vectors"] = [vector.data_ptr() for vector in shared.vectors]
        stride = means.stride
        #: The partial sums: as many as lie beside each other before the exchange, or in it.
        local = torch.zeros(stride * (means.lanes + chunks.bit_length()), dtype=link.vectors[0].dtype)
        offered = link.shared_with(link.rank).vectors
        peers, share = self._peers, means.share
        self.exchange = GradientExchange.of(places, moves, peers, local, offered, stride, tail, waits, share)
        self._alive = (places, moves, local)  # the exchange has only their addresses
        self._first = 0

    def begin(self, number: int, pieces: Sequence[Chunk], stop_on_nan: bool) -> None:
        """Let generated code go on from the collective of this number, with these chunks of every update."""
        exchange, self._first = self.exchange, number
        run = ChunkRange(pieces[0].number, pieces[-1].number + 1)
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
