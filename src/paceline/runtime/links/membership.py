"""`Membership` on one machine: the kernel says at once when a process has ended."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.runtime.links import Change

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
