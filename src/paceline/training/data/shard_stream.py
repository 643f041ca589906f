"""A folder that still grows as the data of a training: samples in the order in which they came."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import DataError
from paceline.errors.arguments import check_arguments
from paceline.training.data.shards import FixedColumn, RaggedColumn
from paceline.training.data.source import SourceTraits
from paceline.training.shards.sealed import SealedList, has_writer, note_position
from paceline.training.shards.writing import shard_files

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
