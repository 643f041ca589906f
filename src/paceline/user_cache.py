"""Files that outlive a process, and that no other user can have written.

Machine code from a cache is executed, so a user that can write there can run code as the owner. Folders and files are
made for their owner alone. A folder or a file that another user owns or may write is refused, by PermissionError; root,
who may write everything anyhow, is trusted. A file is examined and read by one descriptor, and replaced only as a
whole: what was checked is what is used, even if names are exchanged meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OTHERS = 0o022  # the bits of a mode by which a group and everybody may write


def folder() -> Path:
    """The folder of everything that is kept for the user: `~/.cache/paceline`, or in $XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


@contextmanager
def opened(file: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file that only its user can have written, as a descriptor; raise OSError for any other."""
    with _folder(file.parent) as parent:
        # Without O_NONBLOCK a FIFO would wait for its writer.
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(file.name, flags, 0o600, dir_fd=parent)
    try:
        _refuse_others(descriptor, stat.S_IFREG)
        yield descriptor
    finally:
        os.close(descriptor)


def content(descriptor: int) -> bytes:
    """The whole content of an open file."""
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def read(file: Path) -> bytes:
    """The content of a file; raise OSError if there is none that only its user can have written."""
    with opened(file) as descriptor:
        return content(descriptor)


def write(file: Path, new: bytes) -> None:
    """Write a file whole, or not at all; raise OSError where other users could exchange it."""
    _make(file.parent)
    with _folder(file.parent) as parent:
        draft = f"{file.name[:200]}.{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(draft, flags, 0o600, dir_fd=parent), "wb") as opened_draft:
                opened_draft.write(new)
            os.replace(draft, file.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=parent)
            raise


def append(file: Path, more: bytes) -> None:
    """Add to a file, or begin it; raise OSError where other users own it or may write it."""
    _make(file.parent)
    with opened(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
        os.write(descriptor, more)


def _make(path: Path) -> None:
    """Make a folder and those above it that are missing, for the user alone."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:  # `parents=True` would make those above by the umask
        _make(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Open a folder in which only the user can exchange files, as a descriptor.

    A link there may be the user's own, to a larger disk; another user's could lead into any folder of this one.
    """
    if (owner := os.lstat(path).st_uid) not in (os.geteuid(), 0):
        raise PermissionError(errno.EACCES, f"it belongs to user {owner}")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _refuse_others(descriptor, stat.S_IFDIR)
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_others(descriptor: int, kind: int) -> None:
    """Raise PermissionError unless the file is of this kind, and no other user owns it or may write it."""
    status = os.fstat(descriptor)
    reason = ""
    if stat.S_IFMT(status.st_mode) != kind:
        reason = "it is no regular file"
    elif status.st_uid not in (os.geteuid(), 0):
        reason = f"it belongs to user {status.st_uid}"
    elif status.st_mode & OTHERS:
        reason = f"other users may write it (mode {stat.S_IMODE(status.st_mode):o})"
    if reason:
        raise PermissionError(errno.EACCES, reason)
