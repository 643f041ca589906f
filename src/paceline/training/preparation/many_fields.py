"""Refuses a line with so many more fields than the schema that an account of it would not fit into memory.

For each field too many DuckDB writes down the whole line: of one with a million fields, a million times a megabyte.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import DataError

#: Bytes that DuckDB may write down of one line.
MOST = 1 << 28
#: Lines that are shorter cannot need more; where each has a line break, no other byte of a file is looked at.
SHORT = 1 << 14


def refuse_many_fields(path: Path, text: Path, delimiter: str, quote: str, fields: int) -> None:
    """Raise `DataError` with the line; `text` is what is parsed of `path`."""
    separator, mark = delimiter.encode(), re.escape(quote.encode())
    if not text.stat().st_size:  # an empty file cannot be mapped
        return
    with open(text, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        for begin, end in _long_lines(raw):
            line = raw[begin:end]
            outside = re.sub(b"%b[^%b]*%b" % (mark, mark, mark), b"", line) if mark else line
            field_count = outside.count(separator) + 1
            if (field_count - fields) * len(line) > MOST:
                number = 1 + sum(raw[at : min(begin, at + MOST)].count(b"\n") for at in range(0, begin, MOST))
                raise DataError(
                    f"{path}, line {number}: it has {field_count:,} fields, and the schema {fields}; remove it"
                )


def _long_lines(raw: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield where each line of more than twice `SHORT` bytes begins and ends, and perhaps some shorter ones."""
    at = 0
    while at < len(raw):
        if raw.find(b"\n", at, at + SHORT) >= 0 or at + SHORT >= len(raw):
            at += SHORT
            continue
        end = raw.find(b"\n", at)
        end = len(raw) if end < 0 else end
        yield raw.rfind(b"\n", 0, at) + 1, end
        at = end + 1
