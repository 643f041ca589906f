"""Reads a file: its text and its syntax tree."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from pathlib import Path

from paceline.concurrency.check.syntax.old_coroutines import with_coroutines
from paceline.concurrency.check.syntax.python2 import as_python3

#: A file with one of these words may have coroutines of before `async def`.
OLD = re.compile(r"@.*\b(coroutine|inlineCallbacks)\b")


UNREADABLE = "PC001"  # the code of the finding for a file of which nothing was checked


class Unreadable(Exception):
    """Raised for a file that cannot be read as Python; the message says why."""

    def __init__(self, why: str, line: int = 1) -> None:
        super().__init__(why)
        self.line = line


def read(path: Path) -> str:
    """The text of a file, in the encoding that it declares."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    return decode(raw)


def decode(raw: bytes) -> str:
    """Decode source as Python does; what Python refuses is not guessed."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding)
    except SyntaxError as error:  # no such encoding, or not that of the first two lines
        raise Unreadable(f"cannot be decoded: {error.msg}") from None
    except LookupError as error:
        raise Unreadable(f"cannot be decoded: {error}") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"cannot be decoded: line {line} is not {error.encoding}", line) from None


def parse(text: str) -> ast.Module:
    """The syntax tree, with coroutines of before `async def` as such."""
    tree = _parse(text)
    return with_coroutines(tree) if OLD.search(text) else tree


def _parse(text: str) -> ast.Module:
    """The syntax tree; Python 2 files are parsed too, where their statements can be rewritten as Python 3."""
    before, null, _ = text.partition("\0")
    if null:  # which Python refuses without saying where it is
        raise Unreadable("cannot be parsed: a null byte", before.count("\n") + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except SyntaxError as error:
            first = error
        except (RecursionError, MemoryError):  # neither says more, nor where
            raise Unreadable("cannot be parsed: nested too deeply") from None
        except ValueError as error:
            raise Unreadable(f"cannot be parsed: {error}") from None
        try:
            return ast.parse(as_python3(text, first.lineno or 1))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise Unreadable(f"cannot be parsed: {first.msg}", first.lineno or 1) from None
