"""The lines of a text file that its accepted rows stand in.

An engine tells which lines it has refused, and keeps accepted rows in their order, but not their lines:

    line      1       2      3       4      5      6 7          8
    holds     header  row 0  blank   row 1  row 2  refused, 2   row 3
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.training.preparation.text import LONGEST_LINE

Ints = NDArray[np.int64]
_BLANK = re.compile(rb"^\r?\n", re.MULTILINE)


@dataclass(frozen=True)
class Skipped:
    """Lines that hold no accepted row, in increasing order: where each begins, and how many lines it takes."""

    lines: Ints
    spans: Ints


def lines_of(rows: Ints, breaks_before: Ints, header: bool, skipped: Skipped) -> Ints:
    """Return the lines in which accepted rows begin.

    `breaks_before` are the line breaks inside the fields of all accepted rows before each of them.
    """
    without_skipped = 1 + int(header) + rows + breaks_before
    offsets = np.concatenate([[0], np.cumsum(skipped.spans)])
    before = np.searchsorted(skipped.lines - offsets[:-1], without_skipped, side="right")
    lines: Ints = without_skipped + offsets[before]
    return lines


def lines_at(path: Path, offsets: Ints) -> Ints:
    """Return the lines in which these bytes of a file lie; the offsets increase."""
    if not len(offsets):  # an empty file cannot be mapped
        return np.empty(0, np.int64)
    raw = np.memmap(path, np.uint8, mode="r")
    lines, line, at = [], 1, 0
    for offset in offsets.tolist():
        line += int(np.count_nonzero(raw[at:offset] == ord("\n")))
        lines.append(line)
        at = offset
    return np.array(lines, np.int64)


def count_lines(path: Path) -> int:
    """Return the lines of a file, the last one also where no line break ends it."""
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def blank_lines(path: Path) -> Ints:
    """Return the numbers of a file's empty lines, which are no rows."""
    raw = path.read_bytes()
    blanks, line, at = [], 1, 0
    for match in _BLANK.finditer(raw):
        line += raw.count(b"\n", at, match.start())
        at = match.start()
        blanks.append(line)
    return np.array(blanks, np.int64)


def line_with_return(path: Path) -> int:
    """Return the first line inside of which a carriage return stands, or 0."""
    line = 0
    with open(path, "rb") as file:
        while part := file.readline(LONGEST_LINE):
            line += 1
            if b"\r" in part.rstrip(b"\n").removesuffix(b"\r"):
                return line
    return 0
