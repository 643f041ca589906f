"""Who holds a mutex of glibc, which C and C++ use: the mutex itself says so."""

from __future__ import annotations

import os
import struct

from paceline.concurrency.watcher.processes.memory import peek
from paceline.concurrency.watcher.samples import ENDED

_CONTENDED = 2
_PROCESS_SHARED, _KINDS = 128, (0, 1, 2, 3)  # normal, recursive, error-checking, adaptive


def owner_of_mutex(pid: int, address: int) -> tuple[int, ...]:
    """Return the thread that holds the mutex at an address, or `ENDED`; none if no mutex lies there.

    A semaphore or a condition variable may lie there as well, so every field must be as it is in a locked mutex.
    """
    data = peek(pid, address, 20)
    if len(data) < 20:
        return ()
    lock, count, owner, users, kind = struct.unpack("=iIiIi", data)
    plain = kind & ~_PROCESS_SHARED in _KINDS and count <= 10_000 and 1 <= users <= 10_000
    if lock != _CONTENDED or not plain or owner < 2:
        return ()
    if kind & _PROCESS_SHARED:
        return (owner if os.path.exists(f"/proc/{owner}") else ENDED,)
    return (owner,) if os.path.exists(f"/proc/{pid}/task/{owner}") else ()
