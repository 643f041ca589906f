"""Files of text as blocks and lines of UTF-8, and the lines that accepted rows stand in.

    gz, bz2, xz, zst ──unpacked──▶ blocks ──decoded──▶ blocks of UTF-8 ──▶ a file that an engine reads, or lines

Bytes that cannot be decoded become one that is never part of UTF-8, so that an engine refuses their lines.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import DataError

BLOCK = 1 << 20
#: Bytes of the longest line that is read; of a longer one nothing but the beginning is held in memory.
LONGEST_LINE = 1 << 24
#: Written as the byte 0xFF.
_WRONG = "\udcff"


def _open(path: Path) -> Any:
    return open(path, "rb")


def _open_zst(path: Path) -> Any:
    import pyarrow as pa

    return pa.input_stream(str(path), compression="zstd")


_UNPACKED: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _open_zst,
}
codecs.register_error("paceline.wrong", lambda error: (_WRONG, getattr(error, "end")))  # noqa: B009


def is_packed(path: Path) -> bool:
    return path.suffix in _UNPACKED


def is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def check_encoding(encoding: str) -> None:
    """Refuse what is not the name of an encoding of text."""
    try:
        "x".encode(encoding)
        codecs.getincrementaldecoder(encoding)("paceline.wrong").decode(b"", True)  # some know no way to go on
    except (LookupError, ValueError):
        raise DataError(
            f"encoding={encoding!r} is not an encoding that Python has; it is a name such as 'utf-8', 'latin-1', "
            "'cp1252' or 'utf-16'"
        ) from None


def blocks_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked, or raise `DataError`."""
    try:
        with _UNPACKED.get(path.suffix, _open)(path) as file:
            yield from iter(lambda: file.read1(BLOCK), b"")
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        what = "is damaged or was not written to its end" if is_packed(path) else "cannot be read"
        raise DataError(f"{path} {what}: {error}") from error


def utf8(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the text of blocks in UTF-8."""
    if is_utf8(encoding):
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("paceline.wrong")
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "surrogateescape")
    yield decoder.decode(b"", True).encode("utf-8", "surrogateescape")


def lines_of_blocks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their line feeds; of one that is longer than `LONGEST_LINE`, so much and a byte."""
    rest, skips = bytearray(), False
    for block in blocks:
        first, *others = block.split(b"\n")
        if not skips:
            rest += first[: LONGEST_LINE + 1 - len(rest)]
            if others or len(rest) > LONGEST_LINE:
                yield bytes(rest)
                rest, skips = bytearray(), True
        if others:
            yield from others[:-1]
            rest, skips = bytearray(others[-1]), False
    if rest:
        yield bytes(rest)


def write_utf8(path: Path, encoding: str, text: Path) -> None:
    """Write what a file holds, unpacked and in UTF-8."""
    with open(text, "wb") as file:
        for block in utf8(blocks_of(path), encoding):
            file.write(block)


def first_line(path: Path, encoding: str) -> bytes:
    """Return a file's first line in UTF-8, or raise `DataError` where it shows that lines cannot be found."""
    line = next(lines_of_blocks(utf8(blocks_of(path), encoding)), b"")
    if is_utf8(encoding) and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path} begins with the byte order mark of UTF-16; give its source encoding='utf-16'")
    if len(line) > LONGEST_LINE:
        raise DataError(f"the first line of {path} has more than {LONGEST_LINE:,} bytes, so it is no file of lines")
    if b"\r" in line.rstrip(b"\r"):
        raise DataError(
            f"the lines of {path} end with a carriage return alone; `tr '\\r' '\\n'` makes line feeds of them"
        )
    return line


# The lines of a text file that its accepted rows stand in.
#
# An engine tells which lines it has refused, and keeps accepted rows in their order, but not their lines:
#
#     line      1       2      3       4      5      6 7          8
#     holds     header  row 0  blank   row 1  row 2  refused, 2   row 3

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
