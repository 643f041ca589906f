"""Who is alive on one machine, as the kernel says: ranks whose processes have not ended, and locks with an owner."""

from __future__ import annotations

import fcntl
import os
import select
import struct
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING

from paceline.runtime.links import Change
from paceline.runtime.links.waiting import Waiter

if TYPE_CHECKING:
    from paceline.runtime.links import Membership


class LocalProcesses:
    """The processes of the other ranks, watched by a pidfd each, which also covers processes that are not children."""

    def __init__(self, rank: int, pids: Sequence[int]) -> None:
        """Watch the processes of all ranks but `rank`, whose own this is."""
        self.rank, self.pids = rank, list(pids)
        #: pidfd -> rank
        self._watched: dict[int, int] = {}
        #: Ranks whose processes had ended before they could be watched.
        self._missed: set[int] = set()
        self._reported: set[int] = set()
        self._joined: list[int] = []
        for other, pid in enumerate(self.pids):
            if other != rank:
                self._watch(other, pid)

    def join(self, pid: int) -> int:
        """Watch one more process; returns the rank that it gets."""
        self.pids.append(pid)
        rank = len(self.pids) - 1
        self._joined.append(rank)
        self._watch(rank, pid)
        return rank

    def _watch(self, rank: int, pid: int) -> None:
        try:
            self._watched[os.pidfd_open(pid)] = rank
        except ProcessLookupError:
            self._missed.add(rank)

    def gone(self) -> set[int]:
        """The ranks whose processes have ended."""
        watched, poll = self._watched, select.poll()  # of its own, since two threads may ask at once
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        return {watched[descriptor] for descriptor, _ in poll.poll(0)} | self._missed

    def alive(self) -> frozenset[int]:
        """The ranks whose processes run, with this one."""
        return frozenset(range(len(self.pids))) - self.gone()

    def changes(self) -> list[Change]:
        """The ranks that have joined or left since the last call."""
        joined, self._joined = self._joined, []
        departed = sorted(self.gone() - self._reported)
        self._reported.update(departed)
        return [*(Change(rank, True) for rank in joined), *(Change(rank, False) for rank in departed)]

    def close(self) -> None:
        """Stop watching; afterwards no rank is gone."""
        watched, self._watched = self._watched, {}
        for descriptor in watched:
            os.close(descriptor)


if TYPE_CHECKING:
    _: type[Membership] = LocalProcesses


# Record locks of the kernel: about a microsecond each, and released when their owner dies.

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
