"""The folder of a run: everything about one training, readable at any moment, also after a crash.

run.json      plan, job, model, machine, versions, status and summary (`runs.record`), replaced atomically
live.json     while workers train: their processes and what each is at (`runs.live`), replaced atomically
trace.arrow   what happened (`runs.trace`)
model.pt      the trained parameters, a state_dict
checkpoints/  the newest one, where checkpoints were asked for; a killed run is resumed from it
job.pickle    the job itself, without tensors too large to copy, for a replay
source.py     the text of the job's file, where there is one
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.errors import RunFailed, RunFolderError
from paceline.names import file_name
from paceline.runtime.runs.record import RunRecord, Status
from paceline.runtime.runs.schema import draft_of, json_text
from paceline.runtime.runs.trace import Trace, TraceWriter

RESERVED = 64 << 10  # bytes by which the last record may be longer than the first: an error, a history


class RunFolder:
    """Writes the files of a run into its folder, which exists, and keeps other processes from training there."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = -1  # the folder's descriptor, under an exclusive lock; -1: closed, or no folder
        if path is None:
            return
        try:
            self._lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunFolderError(f"the run in {path} is not over: a process is still training there") from None
        except OSError as error:
            self.close()
            raise RunFolderError(
                f"the run's folder {path} cannot be opened: {error.strerror}; give another folder"
            ) from error

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder: another process may resume the run."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove_snapshots(self) -> None:
        """Delete the snapshots of a finished run; they have been evaluated."""
        if self.path:
            (self.path / "snapshots.bin").unlink(missing_ok=True)

    def file(self, name: str) -> Path | None:
        """The path of a file in the folder; None if nothing is written."""
        return self.path / name if self.path else None

    def write_trace(self, trace: Trace) -> None:
        """Write a trace that was made in memory."""
        if self.path:
            writer = TraceWriter(self.path / "trace.arrow", 0)
            writer.append(trace.rows)
            writer.close()

    def write(self, record: RunRecord) -> None:
        """Replace run.json. The first record reserves room for the last one, should the disk be full then."""
        if self.path is None:
            return
        file, text = self.path / "run.json", json_text(record.as_dict()).encode()
        with writing(self.path):
            if record.status == Status.RUNNING:
                self._reserve(file, len(text))
            with draft_of(file, "new" if record.status != Status.RUNNING else "first") as draft:
                write_over(draft, text)

    def _reserve(self, file: Path, size: int) -> None:
        """Make the draft of the last record, of blanks."""
        draft = file.with_name(file.name + ".new")
        try:
            draft.write_bytes(b" " * (size + RESERVED))
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def write_over(file: Path, content: bytes) -> None:
    """Write a file; where it exists, into the room that it has, so that a full disk does not matter."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with open(descriptor, "r+b", buffering=0) as opened:
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[opened.write(remaining) :]
        opened.truncate()


@contextmanager
def writing(path: Path | None) -> Iterator[None]:
    """Raise RunFailed with advice if the block cannot write into a run's folder, as on a full disk."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # PyTorch raises RuntimeError, and leaves the reason in its cause
        reason = getattr(error, "strerror", None) or str(error)
        raise RunFailed(
            f"the run's folder {path} cannot be written: {reason}; make room, or give another (folder=, --runs)"
        ) from error


def new_folder(base: Path, name: str) -> Path:
    """Create a folder below `base` that no other run has. Of runs that begin in the same second each gets its own."""
    stamp, name = time.strftime("%Y%m%d-%H%M%S"), file_name(name)
    for number in range(1000):
        path = base / f"{stamp}-{name}{f'-{number}' if number else ''}"
        try:
            path.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunFolderError(
                f"the run's folder {path} cannot be made: {error.strerror}; give another folder"
            ) from error
        return path
    raise RunFolderError(f"{base} already holds a thousand runs of this second; clean it up")


@contextmanager
def unless_begun(path: Path | None) -> Iterator[None]:
    """Remove a new folder of a run again, with all that is in it, if an error comes before its run.json is there."""
    try:
        yield
    except BaseException:
        if path is not None and not (path / "run.json").exists():
            shutil.rmtree(path, ignore_errors=True)
        raise


@contextmanager
def emptied(path: Path | None) -> Iterator[None]:
    """Remove a new folder again if an error comes before anything was written into it."""
    try:
        yield
    except BaseException:
        if path is not None:
            with suppress(OSError):  # it is not empty
                path.rmdir()
        raise
