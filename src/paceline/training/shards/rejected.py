"""The rows that were set aside, as examples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Example(NamedTuple):
    """A row that was set aside."""

    file: str
    line: int
    record: str


def examples(files: Iterable[Path], most: int = 3) -> dict[str, list[Example]]:
    """Return the first rows that broke each rule, from Parquet files of rejected rows, of which some may be gone."""
    import pyarrow.parquet as pq

    by_rule: dict[str, list[Example]] = {}
    for path in files:
        if not path.is_file():
            continue
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(10_000):
                for row in batch.to_pylist():
                    rule_examples = by_rule.setdefault(row["rule"], [])
                    if len(rule_examples) < most:
                        rule_examples.append(Example(row["file"], row["line"], row["record"] or ""))
    return by_rule
