"""Rows of the trace, numbered by the agent that sends them: of those that a head is sent twice, it takes each once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from paceline.errors import ProtocolError


class Writer(NamedTuple):
    """An agent that sends rows. A node that is started again has another one, which counts from 0."""

    rank: int
    life: int


class NumberedRows:
    """How many rows of each writer are in a trace."""

    def __init__(self, counts: Mapping[Writer, int] | None = None) -> None:
        self.counts = dict(counts or {})

    def known(self, writer: Writer, first: int, count: int) -> int:
        """Take `count` rows, of which the first has this number; return how many of them are in the trace already.

        Raises:
            ProtocolError: rows between those in the trace and these are missing.
        """
        present = self.counts.get(writer, 0)
        if first > present:
            raise ProtocolError(f"rank {writer.rank} sends rows from {first} on, where {present} of its rows are there")
        self.counts[writer] = max(present, first + count)
        return min(count, present - first)
