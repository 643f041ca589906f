"""The pushes that a shard is made of: what its server records, and what the head has read of it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from struct import Struct
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.algorithms.cluster.messages import NONE
from paceline.algorithms.cluster.outputs import Apply
from paceline.runtime.runs.trace import DTYPE, Columns, Kind

ROOM = 1024  # rows that a history has room for at first


def history_dtype(shards: int) -> np.dtype[np.void]:
    """Return the columns of a history: a push, when it began and ended, its bytes, and what it was computed from."""
    names = ("version", "batch", "worker", "base", "start", "end", "bytes")
    return np.dtype([*((name, "<i8") for name in names), ("bases", "<i8", (shards,))])


def pushes_in(rows: memoryview | bytes, shards: int) -> NDArray[np.int64]:
    """Return what rows say of pushes, without times and sizes, which every server of a shard measures itself."""
    table = np.frombuffer(rows, "<i8").reshape(-1, 7 + shards)
    return np.ascontiguousarray(np.delete(table, (4, 5, 6), axis=1))


def checksum_of(rows: memoryview | bytes, shards: int) -> int:
    """Return a number by which histories are compared."""
    return zlib.crc32(pushes_in(rows, shards).tobytes())


class Pushed(Protocol):
    """What a worker has pushed."""

    bases: NDArray[np.int64]

    @property
    def bytes(self) -> memoryview: ...


class KnownHistory:
    """The rows of one shard's history that the head has read, which grow from one reading to the next."""

    def __init__(self, shards: int) -> None:
        self.shards, self._rows = shards, b""

    @property
    def count(self) -> int:
        return len(self._rows) // history_dtype(self.shards).itemsize

    @property
    def checksum(self) -> int:
        return checksum_of(self._rows, self.shards)

    @property
    def rows(self) -> Columns:
        return np.frombuffer(self._rows, history_dtype(self.shards))

    def take(self, since: int, rows: bytes) -> int:
        """Take rows from this one on; return the first that is new, or is another one than was known.

        After a lossy change of view, versions that were read may have been made again of other pushes.
        """
        before = self._rows
        size = history_dtype(self.shards).itemsize
        self._rows = before[: since * size] + rows
        if since * size == len(before):
            return since
        old, new = pushes_in(before, self.shards), pushes_in(self._rows, self.shards)
        common = min(len(old), len(new))
        differs = np.flatnonzero((old[:common] != new[:common]).any(axis=1))
        return int(differs[0]) if len(differs) else common


class PushHistory:
    """The pushes that a shard is made of, in the order of its versions: rows of `history_dtype`."""

    def __init__(self, shards: int) -> None:
        self._row, self._shards = Struct(f"<{7 + shards}q"), shards
        self._rows, self._count = bytearray(ROOM * self._row.size), 0

    def add(self, output: Apply, vector: Pushed, start: int, end: int, answered: int) -> None:
        """Add the push that made a version, and was answered with so many bytes."""
        at = self._count * self._row.size
        if at == len(self._rows):
            self._rows += bytes(len(self._rows))
        moved = len(vector.bytes) + answered
        self._row.pack_into(self._rows, at, *output, start, end, moved, *vector.bases.tolist())
        self._count += 1

    def taken(self, batch: int) -> tuple[int, int]:
        """Return whose gradient of a batch the shard has, and the version that it was computed from; NONE if none.

        The newest pushes are looked at first.
        """
        rows = (self._row.unpack_from(self._rows, n * self._row.size) for n in reversed(range(self._count)))
        return next(((row[2], row[3]) for row in rows if row[1] == batch), (NONE, NONE))

    @property
    def raw(self) -> memoryview:
        """All rows."""
        return self._from(0)

    def after(self, count: int, checksum: int) -> tuple[int, memoryview]:
        """Return the rows after those that are known already: from where on, and their bytes.

        If the known rows are not the first ones of this history, all are returned.
        """
        same = count <= self._count and checksum_of(self._from(0)[: count * self._row.size], self._shards) == checksum
        since = count if same else 0
        return since, self._from(since)

    def _from(self, row: int) -> memoryview:
        return memoryview(bytes(self._rows[row * self._row.size : self._count * self._row.size]))

    def restore(self, body: memoryview) -> None:
        self._rows, self._count = bytearray(body) + bytes(ROOM * self._row.size), len(body) // self._row.size


# --- The histories of all shards, as rows of the trace ----------------------------------------------------------------


def rows_of_pushes(
    histories: Sequence[Columns], known: Sequence[int], new: Sequence[int], gathers: int = 0, joins: bool = False
) -> list[Columns]:
    """Return the rows of each shard's history from the first `new` one on, where so many were `known`.

    `gathers` pushes make a version of the parameters, where one does not; `joins` is whether workers have replicas of
    their own, which start from the version of a centre.
    """
    # All shards have the same batches at a cut, so what came after it is compared with what came after it.
    recent = [history[start if new == known else 0 :] for history, start in zip(histories, new, strict=True)]
    pushed = [set(map(_computation, rows)) for rows in recent]
    tables: list[Columns] = []
    for shard, (history, start) in enumerate(zip(histories, new, strict=True)):
        rows = history[start:]
        parts = [_pushes(shard, rows), *(_pulls(other, rows, pushed[other]) for other in range(len(histories)))]
        parts += [_joins(rows)] if joins else []
        tables.append(np.concatenate([_of_rounds(each, gathers) for each in parts] if gathers else parts))
    return tables


def by_rank(rows: Columns, ranks: int) -> Columns:
    """Let rows of processes name the rank that each was started for, and how many that rank had before."""
    rows["value"], rows["worker"] = rows["worker"] // ranks, rows["worker"] % ranks
    return rows


def _computation(row: Any) -> tuple[int, ...]:
    """Identify the gradient that a push is a part of: its process, its batch and what it was computed from."""
    return int(row["worker"]), int(row["batch"]), *row["bases"].tolist()


def _pushes(shard: int, history: Columns) -> Columns:
    """Return a shard's history as rows of the trace; each push moved gradients there and parameters back."""
    rows = np.zeros(len(history), DTYPE)
    rows["kind"], rows["shard"], rows["update"] = Kind.APPLY, shard, history["batch"]
    for name in ("version", "worker", "base", "start", "end", "bytes"):
        rows[name] = history[name]
    return rows


def _pulls(shard: int, history: Columns, pushed: set[tuple[int, ...]]) -> Columns:
    """Return which version of another shard a push was computed from, where that one did not take it.

    Such a row begins and ends when its push began.
    """
    missing = history[np.array([_computation(row) not in pushed for row in history], bool)]
    rows = np.zeros(len(missing), DTYPE)
    rows["kind"], rows["shard"], rows["update"] = Kind.PULL, shard, missing["batch"]
    rows["worker"], rows["base"], rows["version"] = missing["worker"], missing["bases"][:, shard], -1
    rows["start"] = rows["end"] = missing["start"]
    return rows


def _joins(history: Columns) -> Columns:
    """Return at which version workers have started from the centre, for the first batch of each."""
    first = history[history["bases"][:, 0] >= 0]
    rows = np.zeros(len(first), DTYPE)
    rows["kind"], rows["update"], rows["worker"] = Kind.PULL, first["batch"], first["worker"]
    rows["base"], rows["version"], rows["start"], rows["end"] = first["bases"][:, 0], -1, first["start"], first["start"]
    return rows


def _of_rounds(rows: Columns, needed: int) -> Columns:
    """Return rows whose versions are those of the parameters, which change once in a round."""
    rows["base"] //= needed
    rows["version"] = (rows["version"] - 1) // needed + 1
    return rows
