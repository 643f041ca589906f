"""The inputs of a stream: each is read by a thread of its own, and they take turns.

a ──▶ lines, at most 2 x rows ──┐
b ──▶ ...                       ├──▶ `Turns`: so many lines of a, of b, of c, of a, ...
c ──▶ (stopped)                 ┘    an input that brings nothing in time is passed over until it does
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.training.preparation.text import BLOCK, blocks_of, lines_of_blocks, utf8

#: A row of an input: a line of text, or an object that becomes a line of JSON.
Line = bytes | str | Mapping[str, Any]
#: What brings lines: an iterable, all of whose lines are new, or a function that is called with how many of its lines
#: are in the stream already and returns those that come after them.
Input = Iterable[Line] | Callable[[int], Iterable[Line]]
STANDARD_INPUT, STANDARD_INPUT_SHOWN = "-", "standard input"
#: Bytes of lines of which a shard is made even if there are fewer rows: lines may be long.
PART_BYTES = 1 << 26
#: Seconds after which an address that does not answer counts as failed.
HTTP_TIMEOUT = 60.0


@dataclass(frozen=True)
class InputPart:
    """Some lines of an input, one after another."""

    source: str
    lines: list[bytes]
    begins: bool  # whether these are the first lines that the input brought, among them a header


@dataclass(frozen=True)
class InputFault:
    """An input that brings no lines: for now, or because it failed."""

    source: str
    what: str
    failed: bool


def input_of(name: str, encoding: str) -> Input:
    """Return the lines, in UTF-8, of a file (packed or not), an http or https address, or standard input for `-`."""
    if name == STANDARD_INPUT:
        # Without Python's buffer of standard input, whose lock a thread would hold when the process ends.
        return lines_of_blocks(utf8(iter(lambda: os.read(0, BLOCK), b""), encoding))
    blocks = _blocks_of_address if name.startswith(("http://", "https://")) else lambda name: blocks_of(Path(name))
    if blocks is not _blocks_of_address and not Path(name).exists():
        raise DataError(f"there is no file {name}; an input is a file, an http address or - for standard input")
    return lambda taken: itertools.islice(lines_of_blocks(utf8(blocks(name), encoding)), taken, None)


def _blocks_of_address(address: str) -> Iterator[bytes]:
    with urllib.request.urlopen(address, timeout=HTTP_TIMEOUT) as answer:
        yield from iter(lambda: answer.read1(BLOCK), b"")


class InputReader:
    """Reads one input in a thread, so far ahead as two parts."""

    def __init__(self, name: str, lines: Callable[[], Iterable[bytes]], rows: int) -> None:
        self.name, self.rows = name, rows
        self.stopped = False  # whether nothing came when it was last waited for
        self._lines = lines
        self._changed = threading.Condition()
        self._buffer: deque[bytes] = deque()
        self._size = 0  # bytes of the buffer
        self._ended = self._closed = False
        self._taken = False  # whether any line has been taken
        self.error: str | None = None
        self._thread = threading.Thread(target=self._read, name=f"reads {name}", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether every line has been taken."""
        with self._changed:
            return self._ended and not self._buffer

    def take(self, patience: float) -> InputPart | None:
        """Return so many lines, or those that came within `patience` seconds; None without any."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._holds(1), patience)
            lines = [self._buffer.popleft() for _ in range(min(self.rows, len(self._buffer)))]
            self._size -= sum(map(len, lines))
            self._changed.notify_all()
        if not lines:
            return None
        begins, self._taken = not self._taken, True
        return InputPart(self.name, lines, begins)

    def close(self) -> None:
        """Let the thread end at its next line."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _holds(self, parts: int) -> bool:
        """Whether so many parts are there: of so many rows, or of so many bytes."""
        return len(self._buffer) >= parts * self.rows or self._size >= parts * PART_BYTES

    def _read(self) -> None:
        try:
            for line in self._lines():
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or not self._holds(2))
                    if self._closed:
                        return
                    self._buffer.append(line)
                    self._size += len(line)
                    if self._holds(1):
                        self._changed.notify_all()
        except (OSError, HTTPException, DataError) as error:
            self.error = f"cannot be read: {error}"
        except Exception as error:  # of an iterator of the user's own
            self.error = f"failed: {type(error).__name__}: {error}"
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()


class Turns:
    """Parts of all inputs, round robin, until every input has ended."""

    def __init__(self, readers: list[InputReader], patience: float, last: str = "") -> None:
        names = [reader.name for reader in readers]
        at = names.index(last) + 1 if last in names else 0
        self.readers, self.patience = deque(readers[at:] + readers[:at]), patience

    def __iter__(self) -> Iterator[InputPart | InputFault]:
        while self.readers:
            reader = self.readers.popleft()
            part = reader.take(self._seconds(reader))
            over = reader.over
            if not over:
                self.readers.append(reader)
            if part is not None:
                reader.stopped = False
                yield part
            elif not over and not reader.stopped:
                reader.stopped = True
                yield InputFault(reader.name, f"has brought nothing for {self.patience:g} s", failed=False)
            if over and reader.error is not None:
                yield InputFault(reader.name, reader.error, failed=True)

    def drop(self, name: str) -> None:
        """Take no further part of an input."""
        for reader in [reader for reader in self.readers if reader.name == name]:
            reader.close()
            self.readers.remove(reader)

    def _seconds(self, reader: InputReader) -> float:
        """Return how long to wait for an input: one that has stopped keeps no other one waiting."""
        if reader.stopped and not all(other.stopped for other in self.readers):
            return 0.0
        return self.patience


def as_bytes(line: Line, encoding: str) -> bytes:
    """Return a line as it stands in a file of UTF-8, without its end; `encoding` is that of bytes."""
    if isinstance(line, Mapping):
        line = json.dumps(line)
    raw = line.encode() if isinstance(line, str) else line
    if not isinstance(raw, bytes):
        raise TypeError(f"it brought {line!r:.60}, and not bytes, text or a dictionary")
    if raw is line:
        raw = b"".join(utf8([raw], encoding))
    return raw.rstrip(b"\r\n")


def wait_until(done: Callable[[], bool]) -> None:
    """Wait for another process, which tells by a file."""
    while not done():
        time.sleep(0.02)
