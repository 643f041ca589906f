"""The shared memory of a group: a cell per rank, which says to which round it came with which call; and the slots.

An operation is one or more rounds. In a round a rank writes into its slot, says so in its cell, and reads what it needs
when everybody has come. Every rank has two slots, used in turn: nobody comes to round n + 1 before it is done with
reading round n, so in round n + 2 nobody reads any more what n left, and no barrier is needed after an operation.

Everybody compares everybody's call with its own before it reads, so all of them notice when one differs.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterable

import torch
from torch import Tensor

from paceline.backend import futex
from paceline.engines.transports.shared_memory import Memory

SLOT = 4 << 20  # bytes; longer vectors take several rounds
TEXT = 1024  # bytes for what a rank has to say
VIEWS = 512  # kept, since making views of the slots costs more than a short operation

# Places in a cell. The call of a round lies at CALL or CALL + 1, in turn; WORDS and LEFT are 0 or what follows.
CAME, CALL, ASLEEP, RINGS, SITE, WORDS, LEFT = 0, 1, 3, 4, 5, 6, 7
CELL = 8
HERE, GONE_IN_ORDER, FAILED = 0, 1, 2
WAITING, VICTIM = 1, 2  # what the words are about; a victim has failed because of others


def size_of(ranks: int) -> int:
    """The bytes of the board's own part; what is never touched takes no memory."""
    return ranks * (64 + 2 * TEXT + 2 * SLOT)


class Board:
    def __init__(self, memory: Memory, rank: int, pids: list[int]) -> None:
        self.rank, self.ranks, self.pids = rank, len(pids), pids
        self.round = 0
        self.cells = [memory.ints(CELL) for _ in pids]
        self.sites = [memory.take(TEXT) for _ in pids]
        self.words = [memory.take(TEXT) for _ in pids]
        self.bytes = [[memory.tensor(SLOT, torch.uint8) for _ in range(2)] for _ in pids]
        self.mine = self.cells[rank]
        self.others = [(other, cell) for other, cell in enumerate(self.cells) if other != rank]
        self._theirs = [cell for _, cell in self.others]
        self._bells = [ctypes.addressof(ctypes.c_char.from_buffer(cell)) + 8 * RINGS for cell in self.cells]
        self._rung = 0
        self._views: dict[tuple[int, torch.dtype, int], list[Tensor]] = {}
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

    def come(self, call: int) -> None:
        """To the next round, with a call."""
        number = self.round = self.round + 1
        self.mine[CALL + (number & 1)] = call
        self.mine[CAME] = number
        self.ring_all()

    def together(self) -> bool:
        """Whether everybody has come to the round."""
        number = self.round
        return all(cell[CAME] >= number for cell in self._theirs)

    def differs(self) -> bool:
        """Whether anybody who has come to the round came with another call; what he called is read after he came."""
        number = self.round
        at = CALL + (number & 1)
        call = self.mine[at]
        return any(cell[CAME] >= number and cell[at] != call for cell in self._theirs)

    def missing(self) -> list[int]:
        return [other for other, cell in self.others if cell[CAME] < self.round]

    def call_of(self, rank: int, number: int) -> int:
        return self.cells[rank][CALL + (number & 1)]

    # Sleeping and waking

    def lie_down(self) -> int:
        """Say that one sleeps; look once more for what one waits for before `sleep`ing with the answer."""
        self.mine[ASLEEP] = 1
        return self.mine[RINGS]

    def sleep(self, seen: int, seconds: float) -> None:
        futex.sleep(self._bells[self.rank], seen, seconds)

    def get_up(self) -> None:
        self.mine[ASLEEP] = 0

    def ring(self, other: int) -> None:
        cell = self.cells[other]
        if cell[ASLEEP]:
            self._rung += 1
            cell[RINGS] = self._rung * self.ranks + self.rank  # what nobody else writes: no ring hides another
            futex.wake(self._bells[other])

    def ring_all(self) -> None:
        for other, cell in self.others:
            if cell[ASLEEP]:
                self.ring(other)

    # Telling the others

    def write(self, texts: list[memoryview], place: int, mark: int, text: str) -> None:
        """In one's own part of the texts; the mark in the cell makes it valid."""
        encoded, room = text.encode()[: TEXT - 8], texts[self.rank]
        self.mine[place] = 0
        room[:8] = len(encoded).to_bytes(8, "little")
        room[8 : 8 + len(encoded)] = encoded
        self.mine[place] = mark

    def read(self, texts: list[memoryview], rank: int) -> str:
        length = int.from_bytes(texts[rank][:8], "little")
        return bytes(texts[rank][8 : 8 + length]).decode(errors="replace")

    def words_of(self, rank: int) -> str:
        return self.read(self.words, rank) if self.cells[rank][WORDS] else ""

    # Coming to an end

    def gone(self) -> set[int]:
        """Ranks that will not come any more."""
        lives, watch = self._lives, select.poll()  # of one's own, since two threads may wait at once
        for descriptor in lives:
            watch.register(descriptor, select.POLLIN)
        ended = {lives[descriptor] for descriptor, _ in watch.poll(0)}
        return ended | {other for other, cell in self.others if cell[LEFT]}

    def culprit(self, gone: Iterable[int]) -> int:
        """Who ended by itself, before those who failed because of others."""
        return min(gone, key=lambda rank: (self.cells[rank][WORDS] == VICTIM, rank))

    def leave(self, how: int) -> None:
        if self.mine[LEFT] == HERE:
            self.mine[LEFT] = how
        self.ring_all()
        futex.wake(self._bells[self.rank])

    def close(self) -> None:
        """Let go of everything; nothing may be called afterwards."""
        lives, self._lives = self._lives, {}
        for descriptor in lives:
            os.close(descriptor)
        self._views.clear()
