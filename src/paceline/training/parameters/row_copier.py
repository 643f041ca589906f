"""Copying a shard with embedding tables from version to version: of a table only the touched rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.training.parameters.rows import Journal, outside, rows_of
from paceline.training.parameters.shard_version import ShardVersion


class RowPartition:
    """The bytes of a version: those that belong to the rows of each table, and the rest."""

    def __init__(self, version: ShardVersion) -> None:
        self.tables = [self._rowwise(version, number) for number in version.shape.tables]
        self.rest = outside(version.raw, [tensor for table in self.tables for tensor in table])

    @staticmethod
    def _rowwise(version: ShardVersion, number: int) -> list[Tensor]:
        """Return a table and the optimizer's state of it that has a row per row."""
        table, remembered = version.parameters[number], version.state.views[number].values()
        return [table, *(view for view in remembered if view.shape[:1] == table.shape[:1])]

    def follow(self, newest: RowPartition, missing: Sequence[Tensor | None]) -> None:
        """Become a copy of the newest version. `missing` are the rows of each table to copy; None for all of them."""
        for mine, theirs in zip(self.rest, newest.rest, strict=True):
            mine.copy_(theirs)
        for table, source, rows in zip(self.tables, newest.tables, missing, strict=True):
            for mine, theirs in zip(table, source, strict=True):
                if rows is None:
                    mine.copy_(theirs)
                else:
                    mine.index_copy_(0, rows, theirs.index_select(0, rows))


class RowCopier:
    """Copies versions by rows, and notes in the shard's journal which rows each update touches."""

    def __init__(self, versions: list[ShardVersion], journal: Journal) -> None:
        self.journal, self.tables = journal, versions[0].shape.tables
        self.partitions = [RowPartition(version) for version in versions]
        tables = [versions[0].parameters[number] for number in self.tables]
        self._dense = 2 * (versions[0].values.nbytes - sum(table.nbytes for table in tables))
        self._sizes = [(table.nbytes, table[:1].nbytes + torch.int64.itemsize) for table in tables]

    def copy(self, update: int, source: int, target: int) -> int:
        """Copy a version to where update `update` will make the next one; the bytes of the pull and the dense push."""
        missing = self.journal.begin(update, source, target)
        self.partitions[target].follow(self.partitions[source], missing)
        return self._dense + sum(self._bytes(table, rows) for table, rows in enumerate(missing))

    def note(self, update: int, version: ShardVersion, gradients: Sequence[Tensor | None]) -> int:
        """Note the rows that these gradients touch; the bytes in which their rows travel."""
        present, total = version.state.present.tolist(), 0
        for table, number in enumerate(self.tables):
            rows = rows_of(gradients[number])
            total += self._bytes(table, rows)
            # What an optimizer makes in its first step it makes for all rows, and it need not be zeros.
            first = not present[number] and len(self.partitions[0].tables[table]) > 1
            self.journal.note(update, table, None if first else rows)
        return total

    def _bytes(self, table: int, rows: Tensor | None) -> int:
        """Return the bytes of these rows of a table with their numbers; of all of it where `rows` is None."""
        table_size, row = self._sizes[table]
        return table_size if rows is None else len(rows) * row
