"""The shared memory of a group: a cell per rank, which says to which round it came with which call; and the slots.

An operation is one or more rounds. In a round a rank writes into its slot, says so in its cell, waits until everybody
has come, and reads what it needs. Every rank has two slots, used in turn: nobody comes to round n + 1 before it is done
with reading round n, so in round n + 2 nobody reads any more what n left, and no barrier is needed after an operation.

Everybody compares everybody's call with its own before it reads, so all of them notice when one differs.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable

import torch
from torch import Tensor

from paceline.backend import calls, futex
from paceline.engines.transports.shared_memory import Memory
from paceline.errors import CollectiveFailed, CollectivesDiffer, RankGone, RankMissing

SLOT = 4 << 20  # bytes; longer vectors take several rounds
SPIN_SECONDS = 50e-6
NAP_SECONDS = 0.01  # a lost wake-up, and noticing a death, cost at most this
SITES_SECONDS = 2.0  # for the others to say where they called from
SITE_BYTES = 512
VIEWS = 512  # kept, since making views of the slots costs more than a short operation

# Places in a cell. The call of a round lies at CALL or CALL + 1, in turn.
CAME, CALL, ASLEEP, RINGS, SITE, LEFT = 0, 1, 3, 4, 5, 6
CELL = 8


def size_of(ranks: int) -> int:
    """The bytes of the board's own part; what is never touched takes no memory."""
    return ranks * (64 + SITE_BYTES + 2 * SLOT)


class Board:
    def __init__(self, memory: Memory, rank: int, pids: list[int], seconds: float) -> None:
        self.rank, self.ranks, self.pids, self.seconds = rank, len(pids), pids, seconds
        self.round = 0
        self.cells = [memory.ints(CELL) for _ in pids]
        self.sites = [memory.take(SITE_BYTES) for _ in pids]
        self.bytes = [[memory.tensor(SLOT, torch.uint8) for _ in range(2)] for _ in pids]
        self.mine = self.cells[rank]
        self.others = [(other, cell) for other, cell in enumerate(self.cells) if other != rank]
        self._bells = [ctypes.addressof(ctypes.c_char.from_buffer(cell)) + 8 * RINGS for cell in self.cells]
        self._views: dict[tuple[int, torch.dtype, int], list[Tensor]] = {}
        self._failure: CollectiveFailed | None = None
        self._closed = False
        self._lives = {os.pidfd_open(pids[other]): other for other, _ in self.others}

    def slots(self, dtype: torch.dtype, count: int) -> list[Tensor]:
        """Everybody's slot in the coming round."""
        turn = self.round + 1 & 1
        key = (turn, dtype, count)
        views = self._views.get(key)
        if views is None:
            if len(self._views) == VIEWS:
                self._views.clear()
            stop = count * dtype.itemsize
            views = self._views[key] = [both[turn][:stop].view(dtype) for both in self.bytes]
        return views

    def meet(self, call: int) -> None:
        """Come to the next round with a call, and return when everybody has come with the same."""
        self.check()
        number = self.round = self.round + 1
        at = CALL + (number & 1)
        self.mine[at] = call
        self.mine[CAME] = number
        self.ring_all()
        differs = False
        for other, cell in self.others:
            if cell[CAME] < number:
                self.wait(lambda cell=cell: cell[CAME] >= number, other, call)  # type: ignore[misc]
            if cell[at] != call:
                differs = True
                break
        if differs:
            self._tell_the_difference(number, call)

    def check(self) -> None:
        if self._closed:
            raise CollectiveFailed("the process group was destroyed or aborted; make a new one to go on")
        if self._failure is not None:
            raise CollectiveFailed(f"the process group has failed before: {self._failure}")

    def wait(self, ready: Callable[[], bool], other: int, call: int, seconds: float | None = None) -> None:
        """Until it is `ready`, which is up to the `other` rank: spin briefly, then sleep."""
        start = time.perf_counter()
        spin_end = start + SPIN_SECONDS
        while time.perf_counter() < spin_end:
            if ready():
                return
        give_up = start + (self.seconds if seconds is None else seconds)
        while True:
            # Looked up before `ready` is asked: a rank may come and end at once.
            gone = other in self.gone()
            if ready():
                return
            if self._closed:
                raise CollectiveFailed(f"{calls.tell(call)} was aborted while it waited for rank {other}")
            if gone:
                self._fail(RankGone(self._missing(other, call, self._how_gone(other))))
            if time.perf_counter() > give_up:
                waited = time.perf_counter() - start
                self._fail(RankMissing(self._missing(other, call, f"did not come within {waited:.1f} s")))
            self.nap(ready)

    def nap(self, ready: Callable[[], bool]) -> None:
        self.mine[ASLEEP] = 1
        seen = self.mine[RINGS]
        if not ready():
            futex.sleep(self._bells[self.rank], seen, NAP_SECONDS)
        self.mine[ASLEEP] = 0

    def ring(self, other: int) -> None:
        cell = self.cells[other]
        if cell[ASLEEP]:
            cell[RINGS] += 1
            futex.wake(self._bells[other])

    def ring_all(self) -> None:
        for other, cell in self.others:
            if cell[ASLEEP]:
                self.ring(other)

    def gone(self) -> set[int]:
        """Ranks that will not come any more."""
        lives, watch = self._lives, select.poll()  # of one's own, since two threads may wait at once
        for descriptor in lives:
            watch.register(descriptor, select.POLLIN)
        ended = {lives[descriptor] for descriptor, _ in watch.poll(0)}
        return ended | {other for other, cell in self.others if cell[LEFT]}

    def leave(self) -> None:
        """Tell the others, and wake who waits here. Nothing may be called afterwards."""
        if self._closed:
            return
        self._closed = True
        self.mine[LEFT] = 1
        self.ring_all()
        futex.wake(self._bells[self.rank])
        lives, self._lives = self._lives, {}
        for descriptor in lives:
            os.close(descriptor)

    def _how_gone(self, other: int) -> str:
        if self.cells[other][LEFT]:
            return "has left the group (destroyed or aborted it)"
        return f"is gone: its process {self.pids[other]} has ended"

    def _missing(self, other: int, call: int, how: str) -> str:
        came = self.cells[other][CAME]
        last = calls.tell(self.cells[other][CALL + (came & 1)])
        return (
            f"rank {self.rank} waited in {calls.tell(call)} at {calls.site()} for rank {other}, which {how}; "
            f"rank {other} was last in {last} (its round {came}; here it is round {self.round}). "
            f"Look at what rank {other} printed last; if it is only slow, give init_process_group a longer timeout"
        )

    def _tell_the_difference(self, number: int, call: int) -> None:
        """Everybody who has come notices, writes where it called from, and reads the others'."""
        here = calls.site().encode()[-SITE_BYTES + 8 :]
        text = self.sites[self.rank]
        text[:8] = len(here).to_bytes(8, "little")
        text[8 : 8 + len(here)] = here
        self.mine[SITE] = number
        self.ring_all()
        lines = []
        give_up = time.perf_counter() + SITES_SECONDS
        for rank, cell in enumerate(self.cells):
            while cell[SITE] != number and rank not in self.gone() and time.perf_counter() < give_up:
                self.nap(lambda cell=cell: cell[SITE] == number)  # type: ignore[misc]
            if cell[SITE] == number:
                length = int.from_bytes(self.sites[rank][:8], "little")
                called = calls.tell(cell[CALL + (number & 1)])
                lines.append(f"  rank {rank}: {called}, at {bytes(self.sites[rank][8 : 8 + length]).decode()}")
            else:
                lines.append(f"  rank {rank}: has not come yet")
        self._fail(
            CollectivesDiffer(
                f"the ranks called different operations in round {number} of this group:\n" + "\n".join(lines) + "\n"
                "Every rank must call the same operations in the same order, with as many numbers of the same dtype, "
                "the same reduction and the same root"
            )
        )

    def _fail(self, failure: CollectiveFailed) -> None:
        self._failure = failure
        raise failure
