"""Writes the rows of a split into shards, each of which is seen whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.errors import DataError, MachineError
from paceline.training.shards.manifest import Column, Shard, ShardFile

# --- Where a folder of shards can be written: names a full disk, and what would be written elsewhere ------------------


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Raise `MachineError` with the way out where the block finds the disk of a folder full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"{folder} cannot be written: {error}; give another folder") from error
        raise MachineError(
            f"the disk of {folder} is full; make room and give the command again, which goes on where it stopped"
        ) from error


def refuse_links(folder: Path) -> None:
    """Raise `DataError` if what is written below a folder would go elsewhere: it may be another person's."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; give a folder, which need not exist")
    for each in folder.rglob("*"):
        if each.is_symlink():
            raise DataError(f"{each} is a link, and rows would be written to where it leads; give another folder")


Array = NDArray[np.generic]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: their values one after another, and the length of each."""

    values: Array
    lengths: NDArray[np.int64]


Rows = Array | Ragged


def rows_of(rows: Rows) -> int:
    return len(rows.lengths) if isinstance(rows, Ragged) else len(rows)


def part(rows: Rows, first: int, stop: int) -> Rows:
    """Return the rows from `first` to before `stop`."""
    if not isinstance(rows, Ragged):
        return rows[first:stop]
    ends = np.concatenate([[0], np.cumsum(rows.lengths)])
    return Ragged(rows.values[ends[first] : ends[stop]], rows.lengths[first:stop])


def shard_files(number: int, name: str, column: Column) -> tuple[str, ...]:
    """Return the names of the files of one column of a shard."""
    stem = f"{number:05d}.{name}"
    return (f"{stem}.bin", f"{stem}.ends") if column.ragged else (f"{stem}.bin",)


class ShardWriter:
    """Gathers rows until a shard is full, and writes it.

    A shard that an earlier attempt has finished, and that is passed in `finished`, is not written again. `first` is the
    number of the first shard.
    """

    def __init__(
        self,
        folder: Path,
        columns: Mapping[str, Column],
        shard_rows: int,
        finished: tuple[Shard, ...] = (),
        first: int = 0,
    ) -> None:
        self.folder, self.columns, self.shard_rows, self.first = folder, columns, shard_rows, first
        self.shards: list[Shard] = []
        self._finished = finished
        self._gathered: dict[str, list[Rows]] = {name: [] for name in columns}
        self._rows = 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, batch: Mapping[str, Rows]) -> Iterator[Shard]:
        """Take rows, and yield every shard that was written with them."""
        rows, first = rows_of(next(iter(batch.values()))), 0
        while first < rows:
            stop = min(rows, first + self.shard_rows - self._rows)
            for name, column in batch.items():
                self._gathered[name].append(part(column, first, stop))
            self._rows, first = self._rows + stop - first, stop
            if self._rows == self.shard_rows:
                yield self._flush()

    def close(self) -> Iterator[Shard]:
        """Write the rows that are left, which fill no shard."""
        if self._rows:
            yield self._flush()

    def _flush(self) -> Shard:
        number = len(self.shards)
        if number < len(self._finished):
            shard = self._finished[number]
        else:
            files = {name: file for each in self.columns for name, file in self._write(self.first + number, each)}
            shard = Shard(self._rows, files)
        self.shards.append(shard)
        self._rows = 0
        for gathered in self._gathered.values():
            gathered.clear()
        return shard

    def _write(self, number: int, name: str) -> Iterator[tuple[str, ShardFile]]:
        column, parts = self.columns[name], self._gathered[name]
        names = shard_files(number, name, column)
        if column.ragged:
            ragged = [each for each in parts if isinstance(each, Ragged)]
            yield names[0], write_array(self.folder / names[0], [each.values for each in ragged], column.dtype)
            ends = np.cumsum(np.concatenate([each.lengths for each in ragged]))
            yield names[1], write_array(self.folder / names[1], [ends], "<i8")
        else:
            arrays = [each for each in parts if not isinstance(each, Ragged)]
            yield names[0], write_array(self.folder / names[0], arrays, column.dtype)


def write_array(path: Path, parts: list[Array], dtype: str) -> ShardFile:
    """Write arrays one after another into a file that appears whole."""
    partial, digest, size = path.with_name(f"{path.name}.partial"), hashlib.sha256(), 0
    with open(partial, "wb") as file:
        for array in parts:
            raw = np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data
            digest.update(raw)
            file.write(raw)
            size += raw.nbytes
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    return ShardFile(size, digest.hexdigest())
