"""Reading a file: its text and its syntax tree. What cannot be parsed is said, never raised."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from pathlib import Path

from paceline.check.python2 import repaired


class Unreadable(Exception):
    """A file that is no Python that we can read; the message says why."""

    def __init__(self, why: str, line: int = 1) -> None:
        super().__init__(why)
        self.line = line


def read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    return decode(raw)


def decode(raw: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return raw.decode("latin-1")


def parse(text: str) -> ast.Module:
    """The syntax tree; of a Python 2 file too, as far as its statements can be read as Python 3."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except SyntaxError as error:
            first = error
        except (ValueError, RecursionError, MemoryError) as error:
            raise Unreadable(f"cannot be parsed: {error}") from None
        try:
            return ast.parse(repaired(text, first.lineno or 1))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise Unreadable(f"cannot be parsed: {first.msg}", first.lineno or 1) from None
