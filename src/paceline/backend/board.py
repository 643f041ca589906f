"""The shared memory of a group: a cell per rank, which says to which round it came with which call; and the slots.

An operation is one or more rounds. In a round a rank writes into its slot, says so in its cell, and reads what it needs
when everybody has come. Every round has other slots than the one before: nobody comes to round n + 1 before it is done
with reading round n, so in round n + 2 nobody reads any more what n left, and no barrier is needed after an operation.

Short slots are two for each rank, used in turn. Long ones go round an area that is larger than the processor's cache:
to write where another core has read before costs five times as much as to write where nobody has it in its cache any
more. All ranks ask for slots of the same size in the same order, so nobody needs to say where his is.

Everybody compares everybody's call with its own before it reads, so all of them notice when one differs.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterable

import torch
from torch import Tensor

from paceline.links import futex
from paceline.links.memory import PAGE, Memory

SLOT = 4 << 20  # bytes; longer vectors take several rounds
SHORT = 16 << 10  # bytes of a short slot; below, to make views of new places costs more than they save
AREAS = 128 << 20  # bytes of all ranks' long slots together; four times a usual cache
TEXT = 1024  # bytes for what a rank has to say
VIEWS = 2048  # kept, since making views of the slots costs more than a short operation

# Places in a cell. The call of a round lies at CALL or CALL + 1, in turn; WORDS and LEFT are 0 or what follows.
CAME, CALL, ASLEEP, RINGS, SITE, WORDS, LEFT = 0, 1, 3, 4, 5, 6, 7
CELL = 8
HERE, GONE_IN_ORDER, FAILED = 0, 1, 2
WAITING, VICTIM = 1, 2  # what the words are about; a victim has failed because of others


def size_of(ranks: int) -> int:
    """The bytes of the board's own part; what is never touched takes no memory."""
    return ranks * (64 + 2 * TEXT + 2 * SHORT + area_of(ranks))


def area_of(ranks: int) -> int:
    """Room for two slots at least, so that a round never overwrites the one before."""
    return max(2 * SLOT, AREAS // ranks // PAGE * PAGE)


class Board:
    def __init__(self, memory: Memory, rank: int, pids: list[int]) -> None:
        self.rank, self.ranks, self.pids = rank, len(pids), pids
        self.round = 0
        self.cells = [memory.ints(CELL) for _ in pids]
        self.sites = [memory.take(TEXT) for _ in pids]
        self.words = [memory.take(TEXT) for _ in pids]
        self._short = [[memory.tensor(SHORT, torch.uint8) for _ in range(2)] for _ in pids]
        self._areas = [memory.tensor(area_of(self.ranks), torch.uint8) for _ in pids]
        self._at = 0  # in the areas
        self.mine = self.cells[rank]
        self.others = [(other, cell) for other, cell in enumerate(self.cells) if other != rank]
        self._theirs = [cell for _, cell in self.others]
        self._bells = [ctypes.addressof(ctypes.c_char.from_buffer(cell)) + 8 * RINGS for cell in self.cells]
        self._rung = 0
        self._views: dict[tuple[int, torch.dtype, int], list[Tensor]] = {}
        self._lives = {os.pidfd_open(pids[other]): other for other, _ in self.others}

    def slots(self, dtype: torch.dtype, count: int) -> list[Tensor]:
        """Everybody's slot in the coming round."""
        size = count * dtype.itemsize
        if size <= SHORT:
            place = ~(self.round + 1 & 1)
        else:
            place = self._at if self._at + size <= len(self._areas[0]) else 0
            self._at = place + -(-size // PAGE) * PAGE
        key = (place, dtype, count)
        views = self._views.get(key)
        if views is None:
            if len(self._views) == VIEWS:
                self._views.clear()
            with torch.inference_mode(False):  # they outlive the mode of who asks first
                if place < 0:
                    views = [both[~place][:size].view(dtype) for both in self._short]
                else:
                    views = [area[place : place + size].view(dtype) for area in self._areas]
            self._views[key] = views
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
