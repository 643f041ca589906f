"""Finds the lines of a CSV file in which a quote is not closed, whatever the lines behind them hold.

    7,1.5,"a, b"       a record: each field is in quotes as a whole, or does not begin with one
    8,"two
    lines",c           a record of two lines
    9,1.5,"a           no record begins here, so this line is set aside, and the next one is tried
    10,1.5,"b",c

A parser that reads on instead takes everything up to the next quote of the file for one field.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 22


def record_pattern(delimiter: str, quote: str) -> re.Pattern[bytes]:
    """Return what a record looks like, to the end of its last line."""
    separator, mark = (re.escape(each.encode()) for each in (delimiter, quote))
    quoted = b"[ ]?%b[^%b]*(?:%b%b[^%b]*)*%b[ ]*" % ((mark,) * 6)
    plain = b"(?![ ]?%b)[^%b\n]*" % (mark, separator)
    field = b"(?:%b|%b)(?=%b|\r?\n|\\Z)" % (quoted, plain, separator)
    return re.compile(b"%b(?:%b%b)*(?:\r?\n|\\Z)" % (field, separator, field))


def write_closed(text: Path, closed: Path, delimiter: str, quote: str, header: bool) -> list[tuple[int, bytes]]:
    """Write a text without the lines in which a quote is not closed; return those with their numbers."""
    records, pattern = [], record_pattern(delimiter, quote)
    line, written = 1, 0
    with (
        open(text, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw,
        open(closed, "wb") as out,
    ):
        for begin, end in _unclosed(raw, pattern, quote.encode(), raw.find(b"\n") + 1 if header else 0):
            for first in range(written, begin, _BLOCK):
                block = raw[first : min(begin, first + _BLOCK)]
                line += block.count(b"\n")
                out.write(block)
            records.append((line, raw[begin:end]))
            line, written = line + 1, end
        for first in range(written, len(raw), _BLOCK):
            out.write(raw[first : first + _BLOCK])
    return records


def _unclosed(raw: mmap.mmap, pattern: re.Pattern[bytes], mark: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield from where to where the lines go at which no record begins."""
    while (quote := raw.find(mark, at)) >= 0:
        begin = max(raw.rfind(b"\n", at, quote) + 1, at)
        record = pattern.match(raw, begin)
        at = record.end() if record else raw.find(b"\n", begin) + 1 or len(raw)
        if record is None:
            yield begin, at
