"""A folder of shards as the data of a training: mapped into memory and read by number, whole or still growing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import DataError, suggest
from paceline.errors.arguments import check_arguments
from paceline.training.data.source import SourceTraits
from paceline.training.shards.files import map_ragged, map_rows
from paceline.training.shards.manifest import Column, read_manifest
from paceline.training.shards.sealed import SealedList, has_writer, note_position
from paceline.training.shards.writing import shard_files

#: What of `Shards` travels to another process.
STATE = ("folder", "split", "columns", "normalize", "window", "seed", "manifest")


class FixedColumn:
    """Rows of one size, read from all shards by number."""

    def __init__(self, files: Sequence[Path], column: Column, rows: int, normalize: bool = False) -> None:
        self.values = torch.from_numpy(map_rows(files, column.dtype, column.shape, rows))
        statistics = column.statistics if normalize else None
        #: What is taken away and what is divided by, if the column is normalized.
        self.scale = None
        if statistics:
            positions = torch.tensor(statistics.positions or [(statistics.mean, statistics.std)])
            self.scale = positions[:, 0], torch.where(positions[:, 1] > 0, positions[:, 1], 1.0)

    def batch(self, indices: Tensor) -> list[Tensor]:
        rows = torch.index_select(self.values, 0, indices)
        if self.scale is None:
            return [rows]
        return [rows.to(torch.float32).sub_(self.scale[0]).div_(self.scale[1])]


class RaggedColumn:
    """Rows of different lengths: a batch is padded with zeros to its longest row, and comes with the lengths."""

    def __init__(self, files: Sequence[Sequence[Path]], column: Column, shard_rows: int) -> None:
        self.shard_rows, self.dtype = shard_rows, np.dtype(column.dtype)
        self.shards = [map_ragged(values, ends, column.dtype) for values, ends in files]

    def row(self, index: int) -> np.ndarray[Any, Any]:
        values, ends = self.shards[index // self.shard_rows]
        at = index % self.shard_rows
        return values[ends[at - 1] if at else 0 : ends[at]]

    def batch(self, indices: Tensor) -> list[Tensor]:
        rows = [self.row(index) for index in indices.tolist()]
        lengths = np.array([len(row) for row in rows], np.int64)
        padded = np.zeros((len(rows), int(lengths.max(initial=0))), self.dtype)
        for at, row in enumerate(rows):
            padded[at, : len(row)] = row
        return [torch.from_numpy(padded), torch.from_numpy(lengths)]


class Shards:
    """Samples of a folder that `paceline prepare` made, as a job's `data` or as a Dataset in your own loop.

    A ragged column gives two tensors, the rows padded with zeros and their lengths. Words are numbers; `words(column)`
    lists them.

    Args:
        folder: The folder.
        split: The part of the rows, by its name in the recipe.
        columns: The columns of a batch, in this order. Default: all, in the order of the recipe.
        normalize: Columns from which the mean is subtracted and which are divided by the standard deviation, both of
            the first split: of each place of a vector that the recipe lists, else of the whole column.
        window: The number of shards that an epoch shuffles at a time; 0: all. With a window, samples are read from so
            many files at a time, for folders that are larger than memory.
        seed: Seeds the order of a windowed epoch.
    """

    traits = SourceTraits()

    def __init__(
        self,
        folder: str | Path,
        split: str = "train",
        columns: Sequence[str] | None = None,
        normalize: Sequence[str] = (),
        window: int = 0,
        seed: int = 0,
    ) -> None:
        check_arguments(Shards.__init__, locals())
        self.folder, self.split, self.normalize = Path(folder), split, tuple(normalize)
        self.window, self.seed = window, seed
        self.manifest = read_manifest(folder)
        self.columns = tuple(columns if columns is not None else self.manifest.columns)
        for name in (*self.columns, *self.normalize):
            if name not in self.manifest.columns:
                raise DataError(f"{folder} has no column {name!r}; {suggest(name, self.manifest.columns)}")
        for name in self.normalize:
            if self.manifest.columns[name].statistics is None:
                raise DataError(f"the column {name!r} of {folder} has no statistics, as its rows are not numbers")
        if not isinstance(window, int) or window < 0:
            raise DataError(f"window={window!r} is not a number of shards")
        #: The epoch whose order is kept, and its order.
        self._arranged: tuple[int, Tensor] | None = None
        self.rows: int = self.manifest.split(split).rows
        self._columns = self._opened()

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if not -self.rows <= index < self.rows:
            raise IndexError(f"sample {index} of {self.rows}")
        return tuple(part[0] for part in self.batch(torch.tensor([index % self.rows]), 0))

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
        """Return several samples at once, for a DataLoader."""
        return list(zip(*self.batch(torch.tensor(indices), 0), strict=True))

    def batch(self, indices: Tensor, epoch: int) -> tuple[Tensor, ...]:
        """Return the samples of these numbers, a tensor per column; two for a ragged one."""
        if self.arranged:
            indices = self._places(epoch)[indices]
        return tuple(part for column in self._columns for part in column.batch(indices))

    @property
    def arranged(self) -> bool:
        """Whether the samples come in an order of their own, which a job does not shuffle again."""
        return bool(self.window)

    @property
    def tensors(self) -> tuple[Tensor, ...] | None:
        """The columns as they lie in the files, a row per sample; None where a batch is made of them on the way."""
        fixed = [column for column in self._columns if isinstance(column, FixedColumn) and column.scale is None]
        return None if self.arranged or len(fixed) < len(self._columns) else tuple(column.values for column in fixed)

    def words(self, column: str) -> tuple[str, ...]:
        """Return the words of a column: number 1 stands for the first one, and 0 for a word that is not among them."""
        return self.manifest.columns[column].vocabulary

    def fingerprint(self) -> str:
        """Return a digest of what the manifest says of the samples: sha256 of every file."""
        digest = hashlib.sha256(repr((self.columns, self.normalize)).encode())
        for shard in self.manifest.split(self.split).shards:
            digest.update(repr(asdict(shard)).encode())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STATE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the files in this process, too; only their names travel."""
        self.__dict__.update(state)
        self._arranged, self.rows = None, self.manifest.split(self.split).rows
        self._columns = self._opened()

    def __repr__(self) -> str:
        return f"Shards({str(self.folder)!r}, {self.split!r}: {self.rows:,} samples of {', '.join(self.columns)})"

    def _places(self, epoch: int) -> Tensor:
        """Return the sample at each position of an epoch: windows of shards, each shuffled as a whole."""
        if self._arranged is None or self._arranged[0] != epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed & (2**64 - 1), epoch]))
            firsts = range(0, self.rows, self.manifest.shard_rows)
            shards = [np.arange(first, min(first + self.manifest.shard_rows, self.rows)) for first in firsts]
            order = generator.permutation(len(shards))
            windows = [order[at : at + self.window] for at in range(0, len(order), self.window)]
            permutations = [generator.permutation(np.concatenate([shards[at] for at in window])) for window in windows]
            self._arranged = epoch, torch.from_numpy(np.concatenate(permutations))
        return self._arranged[1]

    def _opened(self) -> list[FixedColumn | RaggedColumn]:
        """Map the files of the columns."""
        split, folder = self.manifest.split(self.split), self.folder / self.split
        try:
            return [self._open(name, folder, len(split.shards)) for name in self.columns]
        except FileNotFoundError as error:
            raise DataError(f"{error.filename} is missing; prepare the folder again") from error

    def _open(self, name: str, folder: Path, shards: int) -> FixedColumn | RaggedColumn:
        column = self.manifest.columns[name]
        files = [[folder / file for file in shard_files(number, name, column)] for number in range(shards)]
        if column.ragged:
            return RaggedColumn(files, column, self.manifest.shard_rows)
        return FixedColumn([file for (file,) in files], column, self.rows, name in self.normalize)


# A folder that still grows as the data of a training: samples in the order in which they came.

#: Seconds between two looks for new shards, and between two notes of how far a training is.
LOOK, NOTE = 0.02, 0.5


class Stream:
    """The first samples of a stream that `paceline ingest` fills, as a job's `data`.

    Sample number n is the n-th that was sealed, whenever it is read, so a run is replayed and resumed as with any other
    data, by any number of workers. A training waits for samples that have not come yet.

    Args:
        folder: The folder of the stream.
        samples: The number of samples of an epoch. Default: as many as there are now.
        timeout: Seconds to wait for a sample. Then the training fails and names the sources that have stopped.
    """

    arranged = True
    traits = SourceTraits()

    def __init__(self, folder: str | Path, samples: int | None = None, timeout: float = 60.0) -> None:
        check_arguments(Stream.__init__, locals())
        self.folder, self.timeout = Path(folder), timeout
        self._open()
        self.samples = int(self._ends[-1]) if samples is None and len(self._ends) else samples or 0
        if self.samples < 1:
            raise DataError(f"{folder} holds no samples yet; say how many an epoch has, as in samples=10_000")

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if not -self.samples <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        return tuple(part[0] for part in self.batch(torch.tensor([index % self.samples]), 0))

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
        """Return several samples at once, for a DataLoader."""
        return list(zip(*self.batch(torch.tensor(indices), 0), strict=True))

    def batch(self, indices: Tensor, epoch: int) -> tuple[Tensor, ...]:
        """Return the samples of these numbers, a tensor per column; wait for those that have not come."""
        self._wait_for(int(indices.max()))
        shard = np.searchsorted(self._ends, indices.numpy(), side="right")
        rows = [np.flatnonzero(shard == each) for each in np.unique(shard)]
        parts = [self._of_shard(int(shard[at[0]]), indices[torch.from_numpy(at)]) for at in rows]
        if len(parts) == 1:
            return tuple(parts[0])
        back = torch.from_numpy(np.argsort(np.concatenate(rows), kind="stable"))
        return tuple(_joined([part[at] for part in parts])[back] for at in range(len(parts[0])))

    def fingerprint(self) -> str:
        """Return a digest of the first samples: the others may not have come."""
        self._wait_for(0)
        first = next(shard for shard in self._list.shards if shard.rows)
        return hashlib.sha256(repr((self.samples, first.files)).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "samples": self.samples, "timeout": self.timeout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the files in this process, too; only their folder travels."""
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        return f"Stream({str(self.folder)!r}, samples={self.samples})"

    def _open(self) -> None:
        self._list = SealedList(self.folder)
        #: When the writer was last told how far this training is.
        self._noted = -NOTE
        #: The columns of the shards that have been read, by the number of the shard.
        self._opened: dict[int, list[FixedColumn | RaggedColumn]] = {}
        self._count()

    def _count(self) -> None:
        #: The number of samples up to the end of each shard.
        self._ends = np.cumsum([shard.rows for shard in self._list.shards], dtype=np.int64)

    def _has(self, number: int) -> bool:
        return bool(len(self._ends)) and number < self._ends[-1]

    def _wait_for(self, number: int) -> None:
        """Wait until a sample has arrived. A writer that holds back is notified first: it may be waiting."""
        self._note_position(number + 1, now=not self._has(number))
        until = time.monotonic() + self.timeout
        while not self._has(number):
            self._list.refresh()
            self._count()
            if self._has(number):
                return
            if time.monotonic() > until:
                raise DataError(self._missing(number))
            time.sleep(LOOK)

    def _note_position(self, samples: int, now: bool) -> None:
        if now or time.monotonic() - self._noted >= NOTE:
            self._noted = time.monotonic()
            note_position(self.folder, samples)

    def _missing(self, number: int) -> str:
        """Say why a sample has not come."""
        have = int(self._ends[-1]) if len(self._ends) else 0
        message = f"sample {number} of the stream {self.folder} has not come within {self.timeout:g} s: it holds {have}"
        if not has_writer(self.folder):
            message += ", and no `paceline ingest` is adding to it"
        notes = {note.source: note.what for note in self._list.notes}
        for source in self._list.sources:
            if source in notes:
                message += f"; {source} {notes[source]}"
        return f"{message}. To train on what is there, give Stream(samples={have})"

    def _of_shard(self, number: int, indices: Tensor) -> list[Tensor]:
        first = int(self._ends[number - 1]) if number else 0
        return [part for column in self._columns(number) for part in column.batch(indices - first)]

    def _columns(self, number: int) -> list[FixedColumn | RaggedColumn]:
        if number not in self._opened:
            rows, folder = self._list.shards[number].rows, self.folder / "rows"
            columns: list[FixedColumn | RaggedColumn] = []
            for name, column in self._list.columns.items():
                files = [folder / file for file in shard_files(number, name, column)]
                columns.append(
                    RaggedColumn([files], column, rows) if column.ragged else FixedColumn(files, column, rows)
                )
            self._opened[number] = columns
        return self._opened[number]


def _joined(parts: list[Tensor]) -> Tensor:
    """Concatenate rows that may be padded to different lengths."""
    if parts[0].dim() < 2 or len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(parts)
    width = max(part.shape[1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])
