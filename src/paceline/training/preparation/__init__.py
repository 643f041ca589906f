"""From raw files to a folder of shards, with an account of every row: map, reduce, deal.

    map      rows are read and validated; a bad one is set aside with its file, line and rule
    reduce   duplicates are dropped, statistics merged, words numbered
    deal     every row gets its place by a hash of what identifies it and the seed, and is written there

What is done is said in SQL ([recipe.py](recipe.py)); an `Engine` executes it: DuckDB or Spark. The
place of a row depends neither on the engine nor on files, threads or partitions, so the shards have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

#: What is wrong with a line that cannot be parsed, in DuckDB's words, and the rule that it breaks.
REFUSALS = {
    "MISSING COLUMNS": "too few fields",
    "TOO MANY COLUMNS": "too many fields",
    "UNQUOTED VALUE": "a quote is not closed",
    "INVALID ENCODING": "not {encoding}",
    "LINE SIZE OVER MAXIMUM": "the line is too long",
    "INVALID STATE": "the line cannot be parsed",
}


def rule_of(fault: str, encoding: str) -> str:
    """Return the rule that a line breaks, for what is wrong with it in DuckDB's words."""
    return REFUSALS.get(fault, fault.lower()).format(encoding=encoding.upper())


#: Called with what is being done and how many rows are done: (step, rows).
Progress = Callable[[str, int], None]


@dataclass
class SourceRows:
    """What was read of one source."""

    read: int = 0
    rejected: int = 0


class Engine(Protocol):
    """Executes a recipe. Every method is called once, in this order; `dealt` once for each split."""

    def read(self, progress: Progress) -> list[SourceRows]: ...

    def rejected(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that were set aside: source, file, line, rule, record."""

    def kept(self) -> dict[str, int]:
        """Return the rows of each split, without duplicates."""

    def words(self, expression: str) -> list[str]:
        """Return the distinct values of a column over the first split, sorted by their bytes."""

    def dealt(self, split: str, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split in the order of their places, so many at a time."""

    def close(self) -> None: ...
