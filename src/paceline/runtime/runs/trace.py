"""The trace: what happened, one row per event, with versions. Every engine writes the same kind of rows.

A row is a `Row`; its fields are the columns of trace.arrow, by name. Workers write rows into a ring of shared memory
each (about 200 ns a row); the parent drains the rings into an Arrow stream, which opens whole up to the last drain even
when every process was killed.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paceline.errors import RunFailed
from paceline.runtime.links.ring_buffer import Ring
from paceline.runtime.runs.schema import SCHEMA_VERSION, check_version


class Kind(IntEnum):
    """What a row is about."""

    #: A gradient was computed.
    COMPUTE = 1
    #: The worker took part in a collective.
    COLLECTIVE = 2
    #: An update was applied to parameters.
    APPLY = 3
    #: A shard refused a push, since it had the batch already.
    DROP = 4
    #: The process of the worker died.
    DEATH = 5
    #: The parameters were copied for an evaluation.
    SNAPSHOT = 6
    #: The run was resumed from a checkpoint: one row per shard, of no worker, with the version it begins with.
    RESUME = 7
    #: A stage of a pipeline worked on a micro-batch: `shard` is the stage, `base` the micro-batch, `version` the letter
    #: of the work (F, B, W).
    STAGE = 8
    #: A worker entered a group, after another one had died or the run was resumed: `version` is the group's epoch,
    #: `update` the first update that it shares out, and `base` the last collective that this worker had made before.
    REGROUP = 9
    #: A worker computed a batch from this version (`base`) of a shard that took the batch of another process. Only
    #: servers on a cluster write it, and only where the batch was taken by other shards; it begins when the push began
    #: that one of them has taken.
    PULL = 10
    #: The learning rate that a worker steps with, in `value`: of the optimizer's first group. Like the next two, it is
    #: recorded at a worker's first update and about twice a second from then on.
    LEARNING_RATE = 11
    #: The Euclidean norm of the gradient of an update, before clipping, in `value`.
    GRADIENT_NORM = 12
    #: The bytes of the worker's own memory, without what it shares, in `value`.
    MEMORY = 13


class Row(NamedTuple):
    """One event. -1 stands for a number that does not apply to its kind."""

    #: One of `Kind`.
    kind: int
    #: Number of the worker; -1 in a RESUME.
    worker: int
    #: Number of the update (synchronous plans) or of the batch (asynchronous plans), from 0.
    update: int
    #: Number of the shard of the parameters, or of the stage.
    shard: int = -1
    #: Version of the parameters that the gradient was computed from.
    base: int = -1
    #: Version of the parameters that the event made, from 1.
    version: int = -1
    #: Nanoseconds since the start of the run, over all of its lives.
    start: int = 0
    #: Nanoseconds since the start of the run; never less than `start`.
    end: int = 0
    #: Nanoseconds spent waiting for other workers: before `start` in COMPUTE and STAGE rows, within the span in others.
    waited: int = 0
    #: Training samples of a COMPUTE; 0 where a batch is evaluated again, so that a sum counts each sample once.
    samples: int = 0
    #: Bytes moved between workers.
    bytes: int = 0
    #: Mean loss of a COMPUTE, the figure of a LEARNING_RATE, GRADIENT_NORM or MEMORY; of a push to servers, in APPLY
    #: and PULL rows, how many processes the worker had before this one; NaN or 0 in other rows.
    value: float = math.nan
    #: What the loss of a COMPUTE weighs in a mean, as its gradient does: the job's `loss_denominator`; -1: `samples`.
    weight: float = -1.0


ROW = struct.Struct("<11q2d")
FLOATS = ("value", "weight")
DTYPE = np.dtype([(name, "<f8" if name in FLOATS else "<i8") for name in Row._fields])
#: Beyond these a number is no worker or shard, and no nanosecond or update either.
MOST, LARGEST = 1 << 20, 1 << 60
VERSION_KEY = b"paceline.schema_version"
SCHEMA = pa.schema(
    [(name, pa.float64() if name in FLOATS else pa.int64()) for name in Row._fields],
    metadata={VERSION_KEY: str(SCHEMA_VERSION)},
)
Columns = npt.NDArray[np.void]


class TraceRing:
    """One worker's rows in shared memory: a `Ring` whose slots are rows. The worker writes, the parent drains."""

    ROWS = 16384

    def __init__(self, raw: memoryview) -> None:
        ring = Ring(raw, self.ROWS, ROW.size)
        self._sent, self._taken, self._raw = ring.sent, ring.taken, ring.raw
        self._rows = np.frombuffer(ring.raw, DTYPE)
        #: What `sent` says, kept here too: to read shared memory costs more than to write a row.
        self._head = self._sent[0]  # a worker that takes the place of a dead one continues with its ring

    @classmethod
    def size(cls) -> int:
        """The bytes that one ring takes."""
        return Ring.size(cls.ROWS, ROW.size)

    @property
    def full(self) -> bool:
        """Whether the next row would overwrite one that is not drained yet."""
        return self._head - self._taken[0] >= self.ROWS

    @property
    def crowded(self) -> bool:
        """Whether more than half of the ring is not drained yet."""
        return self._head - self._taken[0] > self.ROWS // 2

    @property
    def memory(self) -> tuple[memoryview, memoryview, memoryview]:
        """What generated code writes rows by: how many were sent, how many were taken, and the rows themselves."""
        return self._sent, self._taken, self._raw

    def catch_up(self) -> None:
        """Continue behind the rows that generated code has written."""
        self._head = self._sent[0]

    def write(self, *row: float) -> None:
        """Write one row, in the order of `Row`'s fields; the caller has checked `full`."""
        ROW.pack_into(self._raw, (self._head % self.ROWS) * ROW.size, *row)
        self._head += 1
        self._sent[0] = self._head

    def write_rows(self, rows: Columns) -> int:
        """Write as many of these rows as there is space for, and return their number."""
        count = min(len(rows), self.ROWS - (self._head - self._taken[0]))
        place = self._head % self.ROWS
        first = min(count, self.ROWS - place)  # the rest goes to the beginning
        self._rows[place : place + first] = rows[:first]
        self._rows[: count - first] = rows[first:count]
        self._head += count
        self._sent[0] = self._head
        return count

    def drain(self) -> Columns:
        """Take the rows written since the last call."""
        head, tail = self._sent[0], self._taken[0]
        place = tail % self.ROWS
        first = min(head - tail, self.ROWS - place)
        rows = np.concatenate([self._rows[place : place + first], self._rows[: head - tail - first]])
        self._taken[0] = head
        return rows


def _array(column: npt.NDArray[Any]) -> Any:
    """Return a column for Arrow. `pa.array` would import pandas, which takes a second of a run that has begun."""
    kind = pa.float64() if column.dtype.kind == "f" else pa.int64()
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(np.ascontiguousarray(column))])


class TraceWriter:
    """Appends drained rows to the run folder's Arrow stream; `path` None keeps them in memory only.

    The rows of a resumed run's `earlier` lives come first, in a new file that replaces the old one when they are in it.
    """

    def __init__(self, path: Path | None, start: int, earlier: Columns | None = None) -> None:
        self.path, self.origin = path, start
        self._parts: list[Columns] = []
        draft = path.with_name(path.name + ".new") if path and earlier is not None else path
        self._file: Any = pa.OSFile(str(draft), "wb") if draft else None
        self._stream: Any = pa.ipc.new_stream(self._file, SCHEMA) if draft else None
        if earlier is not None:
            try:
                self._append(earlier)
                if path and draft:
                    os.replace(draft, path)
            except BaseException:
                if draft:
                    draft.unlink(missing_ok=True)
                raise

    def append(self, rows: Columns) -> None:
        """Write rows whose times are of this process's clock; the run's origin is subtracted."""
        if len(rows):
            rows["start"] -= self.origin
            rows["end"] -= self.origin
            self._append(rows)

    def _append(self, rows: Columns) -> None:
        self._parts.append(rows)
        if self._stream:
            try:
                self._stream.write_batch(pa.record_batch([_array(rows[n]) for n in Row._fields], schema=SCHEMA))
                self._file.flush()
            except OSError as error:
                self._stream = None  # what is written already stays readable
                raise RunFailed(
                    f"the trace {self.path} cannot be written: {error}; make room, or give another folder (--runs)"
                ) from error

    def sync(self) -> None:
        """Wait until what was appended would survive a power failure."""
        if self.path:
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def close(self) -> Trace:
        """Finish the file and return the whole trace."""
        if self._stream:
            self._stream.close()
        if self._file:
            self._file.close()
        return self.so_far()

    def so_far(self) -> Trace:
        """Return the trace of what was appended until now."""
        return Trace(_by_end(self._parts))


class Trace:
    """What happened, in the order in which it ended."""

    def __init__(self, rows: Columns) -> None:
        self.rows = rows

    @staticmethod
    def of(rows: Iterable[Row]) -> Trace:
        """Make a trace of rows in memory."""
        return Trace(np.array([tuple(row) for row in rows], DTYPE))

    @staticmethod
    def open(path: Path) -> Trace:
        """Read a trace; one cut off by a crash opens up to its last whole record.

        RunFolderError for a newer schema, and ValueError for rows that no run has written.
        """
        parts: list[Columns] = []
        with pa.OSFile(str(path), "rb") as file:
            try:
                stream = pa.ipc.open_stream(file)
            except pa.ArrowException as error:
                raise ValueError(f"{path} is no trace: {error}") from error
            check_version(int((stream.schema.metadata or {}).get(VERSION_KEY, 1)), path)
            while True:
                try:
                    batch = stream.read_next_batch()
                except (StopIteration, pa.ArrowException, OSError):
                    break
                part = np.empty(batch.num_rows, DTYPE)
                part["weight"] = -1.0  # which older traces lack
                for name in filter(batch.schema.names.__contains__, Row._fields):
                    part[name] = batch.column(name).to_numpy()
                if not _possible(part):
                    raise ValueError(f"a row of {path} is none that a run writes: the file is damaged")
                parts.append(part)
        return Trace(_by_end(parts))

    def __len__(self) -> int:
        return len(self.rows)

    def of_kind(self, *kinds: Kind) -> Columns:
        """Select the rows of these kinds."""
        return self.rows[np.isin(self.rows["kind"], kinds) if len(kinds) > 1 else self.rows["kind"] == kinds[0]]

    def lives(self) -> list[Columns]:
        """Split the rows where the run was resumed."""
        resumed = np.flatnonzero(self.rows["kind"] == Kind.RESUME)
        starts = [int(at) for at in resumed if self.rows["shard"][at] <= 0]  # the first of each resumption
        return np.split(self.rows, starts)

    def staleness(self) -> npt.NDArray[np.int64]:
        """Count, for each push to a shard, the updates between the worker's pull and the push."""
        pushes = (self.rows["kind"] == Kind.APPLY) & (self.rows["version"] > 0)  # without locks there are no versions
        stale: npt.NDArray[np.int64] = self.rows["version"][pushes] - 1 - self.rows["base"][pushes]
        return stale

    def wait_fraction(self) -> float:
        """Return the share of all workers' time that was spent waiting for others."""
        workers, total = self.rows["worker"], 0
        for worker in np.unique(workers):
            mask = workers == worker
            total += int(self.rows["end"][mask].max() - self.rows["start"][mask].min())
        return float(self.rows["waited"].sum()) / total if total else 0.0

    def bytes_sent(self) -> int:
        """Sum the bytes that were moved between workers."""
        return int(self.rows["bytes"].sum())

    def loss_curve(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return (updates, losses): the mean over an update, without losses that are not finite."""
        rows = self._computed()
        updates, place = np.unique(rows["update"], return_inverse=True)
        losses, weights = weighted_losses(rows)
        totals = np.bincount(place, weights, len(updates))
        means = np.full(len(updates), math.nan)
        return updates, np.divide(np.bincount(place, losses, len(updates)), totals, out=means, where=totals > 0)

    @property
    def newest_loss(self) -> float:
        """The loss of the last update; NaN if there is none yet."""
        _, losses = self.loss_curve()
        return float(losses[-1]) if len(losses) else math.nan

    def not_finite(self) -> int:
        """Count the gradients that came from a loss of NaN or infinity."""
        rows = self._computed()
        return int((~np.isfinite(rows["value"]) & (rows["weight"] != 0)).sum())

    def _computed(self) -> Columns:
        """Return the rows of gradients that have samples: a worker may get none of a small last batch."""
        rows: Columns = self.rows[(self.rows["kind"] == Kind.COMPUTE) & (self.rows["samples"] > 0)]
        return rows


def weighted_losses(rows: Columns) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the loss of each COMPUTE times its weight in a mean, and the weight: 0 where the loss is not finite."""
    weights = np.where(rows["weight"] < 0, rows["samples"], rows["weight"])
    weights = np.where(np.isfinite(rows["value"]), weights, 0.0)
    return np.where(weights > 0, weights * rows["value"], 0.0), weights


def _possible(rows: Columns) -> bool:
    """Whether rows may be what a run has written: the numbers of a damaged file have memory reserved for each."""
    kinds_valid = np.isin(rows["kind"], list(Kind)).all()
    few = all((rows[name] < MOST).all() for name in ("worker", "shard"))
    # Clocks of other nodes may be behind that by which the run began.
    least = dict.fromkeys(("start", "end"), -LARGEST)
    in_range = all(
        (rows[name] >= least.get(name, -1)).all() and (rows[name] < LARGEST).all()
        for name in Row._fields
        if name not in FLOATS
    )
    return bool(kinds_valid and few and in_range and (rows["start"] <= rows["end"]).all())


def _by_end(parts: Sequence[Columns]) -> Columns:
    """Join rows, in the order in which they ended."""
    rows = np.concatenate(parts) if parts else np.empty(0, DTYPE)
    ends = rows["end"]
    return rows if (ends[1:] >= ends[:-1]).all() else rows[np.argsort(ends, kind="stable")]


def percentile(values: Sequence[int] | npt.NDArray[np.int64], share: float) -> float:
    """Return the percentile at `share` percent; 0 for no values."""
    return float(np.percentile(values, share)) if len(values) else 0.0
