"""The journal of a tuning: one JSON object per line, appended by a single process and readable at any moment.

study    the first line: search, space, seed, metric, ...
way      how trials are run, as it was chosen
leg      a leg began: trial, start, stop, configuration, worker
report   a trial reported: trial, step, value, and whether it is to stop
end      a leg ended: trial, step, value, status, reason, seconds
again    a leg that was under way when the tuning was killed began once more

A line is written with one call, so that a SIGKILL leaves at most the last one torn, which is cut off on resuming. Every
second what was written is also forced to the disk.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.errors import TuningError
from paceline.runtime.runs.schema import strict

#: Since 2, states of trials are safetensors; before, they were pickles.
SCHEMA = 2
SYNC = 1.0  # seconds between two calls of fdatasync
Row = dict[str, Any]


class Journal:
    """Appends rows to the journal's file and keeps other processes from writing to it."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._begun, self._synced = time.time(), time.monotonic()
        self._descriptor = -1 if file is None else _open(file)

    def rows(self) -> list[Row]:
        """Return the rows that are there, and cut off a torn last line."""
        if self.file is None:
            return []
        content = self.file.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.ftruncate(self._descriptor, end)
        return list(parse(content[:end], self.file))

    def write(self, row: Row) -> None:
        """Append a row, with the time."""
        if self._descriptor < 0:
            return
        line = json.dumps({**strict(row), "time": round(time.time(), 6)}, allow_nan=False) + "\n"
        try:
            os.write(self._descriptor, line.encode())
            if time.monotonic() - self._synced > SYNC:
                os.fdatasync(self._descriptor)
                self._synced = time.monotonic()
        except OSError as error:
            raise TuningError(f"the journal {self.file} cannot be written: {error.strerror}; make room") from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def _open(file: Path) -> int:
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TuningError(f"the journal {file} cannot be opened: {error.strerror}; give another folder") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise TuningError(f"the tuning in {file.parent} is not over: a process is still writing its journal") from None
    return descriptor


def read(file: Path) -> list[Row]:
    """Read a journal, also one that is being written."""
    if not file.is_file():
        raise TuningError(f"{file.parent} has no {file.name}; give the folder of a tuning")
    content = file.read_bytes()
    return list(parse(content[: content.rfind(b"\n") + 1], file))


def parse(content: bytes, file: Path) -> Iterator[Row]:
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            row = json.loads(line)
            kind = row["row"]
        except (ValueError, KeyError, TypeError):
            raise TuningError(f"{file} is damaged in line {number}") from None
        if kind == "study" and row.get("schema", 0) > SCHEMA:
            raise TuningError(f"{file} has schema {row['schema']}, and this version of Paceline knows {SCHEMA}")
        yield row
