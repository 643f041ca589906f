"""Record locks of the kernel: about a microsecond each, and released when their owner dies."""

from __future__ import annotations

import fcntl
import os
import struct
from multiprocessing.reduction import DupFd

from paceline.runtime.links.waiting import Waiter

FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, owner


class Locks:
    """A file of record locks.

    A process loses all its locks when it closes any descriptor of the file, so it keeps this one open.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("paceline-locks", os.MFD_CLOEXEC) if descriptor is None else descriptor

    def __getstate__(self) -> dict[str, object]:
        return {"descriptor": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.descriptor = state["descriptor"].detach()  # type: ignore[attr-defined]


class RecordLock:
    """One lock of the file, used as `with lock as nanoseconds_waited:`.

    Holders of a shared lock exclude only those that do not share it.
    """

    def __init__(self, locks: Locks, number: int, waiter: Waiter, what: str, shared: bool = False) -> None:
        self._descriptor, self._waiter, self.what = locks.descriptor, waiter, what
        # Packed once, since a lock is taken and released in every step.
        self._take = FLOCK.pack(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        self._give = FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0)

    def __enter__(self) -> int:
        """Take the lock, and return the nanoseconds that it was waited for."""
        if self._try():
            return 0
        # No doorbell is rung when a lock is released: the holder does not know which ranks wait for it.
        return self._waiter.until(self._try, self.holder, rung=False)

    def __exit__(self, *_: object) -> None:
        fcntl.fcntl(self._descriptor, fcntl.F_SETLK, self._give)

    def _try(self) -> bool:
        try:
            # Not F_SETLKW: a wait in the kernel has no deadline and cannot be cancelled.
            fcntl.fcntl(self._descriptor, fcntl.F_SETLK, self._take)
        except OSError:
            return False
        return True

    def holder(self) -> str:
        """Return the process that holds the lock, for the message of a wait that passed its deadline."""
        answer = FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, self._take))
        return f"process {answer[4]}, which holds {self.what}"
