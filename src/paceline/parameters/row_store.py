"""A shard with embedding tables, seen by one worker: of a table only the touched rows are copied and written down."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.parameters.rows import Journal, outside, rows_of
from paceline.parameters.store import Optimizer, Schedule, ShardStore, ShardVersion


def shard_store(
    parameters: list[nn.Parameter],
    optimizer: Optimizer,
    schedule: Schedule | None,
    rooms: list[ShardVersion],
    journal: Journal,
) -> ShardStore:
    if rooms[0].shape.tables:
        return RowStore(parameters, optimizer, schedule, rooms, journal)
    return ShardStore(parameters, optimizer, schedule, rooms)


class RowPartition:
    """A room's bytes: what belongs to the rows of each table, and the rest."""

    def __init__(self, room: ShardVersion) -> None:
        self.tables = [self._rowwise(room, number) for number in room.shape.tables]
        self.rest = outside(room.raw, [tensor for table in self.tables for tensor in table])

    @staticmethod
    def _rowwise(room: ShardVersion, number: int) -> list[Tensor]:
        """A table, and what the optimizer remembers of it row by row."""
        table, remembered = room.parameters[number], room.state.views[number].values()
        return [table, *(view for view in remembered if view.shape[:1] == table.shape[:1])]

    def follow(self, newest: RowPartition, missing: Sequence[Tensor | None]) -> None:
        """Become a copy of the newest version. Of each table some rows may be missing here, or (None) any."""
        for mine, theirs in zip(self.rest, newest.rest, strict=True):
            mine.copy_(theirs)
        for table, source, rows in zip(self.tables, newest.tables, missing, strict=True):
            for mine, theirs in zip(table, source, strict=True):
                if rows is None:
                    mine.copy_(theirs)
                else:
                    mine.index_copy_(0, rows, theirs.index_select(0, rows))


class RowStore(ShardStore):
    def __init__(
        self,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        schedule: Schedule | None,
        rooms: list[ShardVersion],
        journal: Journal,
    ) -> None:
        super().__init__(parameters, optimizer, schedule, rooms)
        self.journal, self.tables = journal, rooms[0].shape.tables
        self.parted = [RowPartition(room) for room in rooms]
        tables = [rooms[0].parameters[number] for number in self.tables]
        self._dense = self.bytes - 2 * sum(table.nbytes for table in tables)
        self._sizes = [(table.nbytes, table[:1].nbytes + torch.int64.itemsize) for table in tables]

    def move(self, source: int, target: int) -> None:
        missing = self.journal.begin(self.updates + 1, source, target)
        self.parted[target].follow(self.parted[source], missing)
        self.bytes = self._dense + sum(self._travels(table, rows) for table, rows in enumerate(missing))
        self.look(target)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        present = self.room.state.present.tolist()
        for table, number in enumerate(self.tables):
            rows = rows_of(gradients[number])
            self.bytes += self._travels(table, rows)
            # What an optimizer makes in its first step it makes for all rows, and it need not be zeros.
            first = not present[number] and len(self.parted[0].tables[table]) > 1
            self.journal.note(self.updates + 1, table, None if first else rows)
        super().step(gradients)

    def _travels(self, table: int, rows: Tensor | None) -> int:
        """The bytes of these rows of a table, with their numbers; of all of it where `rows` is None."""
        whole, row = self._sizes[table]
        return whole if rows is None else len(rows) * row
