"""Send and receive: between every two ranks, in each direction, a ring of blocks in the board's memory.

A send copies into free blocks and is done when all of it is there, so short messages never wait for the receiver; what
does not fit waits for its turn. Whoever waits here moves everything that can be moved, in both directions: sends and
receives may be started and waited for in any order. A message that nobody has asked for yet is put aside.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

from paceline.backend import calls
from paceline.backend.board import Board
from paceline.backend.vectors import flat, settle
from paceline.backend.works import Finished
from paceline.engines.transports.shared_memory import Memory
from paceline.errors import CollectiveFailed, CollectivesDiffer

BLOCKS = 16
BLOCK = 64 << 10  # bytes

# Where the parts of a ring begin, and its length.
HEADERS_AT, BLOCKS_AT = 128, 128 + 64 * BLOCKS
RING = BLOCKS_AT + BLOCKS * BLOCK

# Places in a ring's counters, and in a block's header.
WRITTEN, TAKEN = 0, 8  # on two cache lines, since two ranks write them
TAG, CALL, BYTES = 0, 1, 2


def size_of(ranks: int) -> int:
    return ranks * ranks * RING


class Ring:
    def __init__(self, bytes: memoryview) -> None:
        self.counters = bytes[:HEADERS_AT].cast("q")
        headers = bytes[HEADERS_AT:BLOCKS_AT].cast("q")
        self.headers = [headers[8 * number : 8 * number + 3] for number in range(BLOCKS)]
        self.blocks = torch.frombuffer(bytes[BLOCKS_AT:], dtype=torch.uint8).view(BLOCKS, BLOCK).unbind()


class Letter(Finished):
    """A send or a receive; `moved` counts the bytes that have got through."""

    def __init__(self, mail: Mail, tensor: Tensor, other: int, tag: int) -> None:
        super().__init__([tensor])
        self.mail, self.tensor, self.vector, self.other, self.tag = mail, tensor, flat(tensor), other, tag
        self.call = calls.pack(calls.SEND, calls.DTYPE_NUMBERS[tensor.dtype], tensor.numel())
        self.bytes = self.vector.view(torch.uint8)
        self.moved, self.done = 0, False
        self.failure: CollectiveFailed | None = None

    def is_completed(self) -> bool:
        self.mail.progress()
        return self.done

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self.mail.wait(self, timeout.total_seconds())
        if self.failure is not None:
            raise self.failure
        return True


@dataclass(eq=False)
class Arriving:
    """A message on its way into `bytes`: those of who asked for it, or a place aside."""

    tag: int
    call: int
    bytes: Tensor
    asked: Letter | None
    moved: int = 0


class Mail:
    def __init__(self, memory: Memory, board: Board) -> None:
        self.board = board
        ranks = range(board.ranks)
        bytes = [[memory.take(RING) for _ in ranks] for _ in ranks]  # [from][to]
        self.out = [Ring(each) for each in bytes[board.rank]]
        self.into = [Ring(row[board.rank]) for row in bytes]
        self.unsent: list[deque[Letter]] = [deque() for _ in ranks]
        self.asked: list[list[Letter]] = [[] for _ in ranks]  # by whom it is to come from, in order
        self.aside: list[list[Arriving]] = [[] for _ in ranks]
        self.arriving: list[Arriving | None] = [None for _ in ranks]
        self._lock = threading.RLock()

    def send(self, letter: Letter) -> None:
        self.board.check()
        with self._lock:
            self.unsent[letter.other].append(letter)
        self.progress()

    def receive(self, letter: Letter) -> None:
        self.board.check()
        with self._lock:
            arriving = self.arriving[letter.other]
            early = [message for message in self.aside[letter.other] if message.tag == letter.tag]
            if early:
                self.aside[letter.other].remove(early[0])
                _deliver(early[0], letter)
            elif arriving is not None and arriving.asked is None and arriving.tag == letter.tag:
                arriving.asked = letter
            else:
                self.asked[letter.other].append(letter)
        self.progress()

    def wait(self, letter: Letter, seconds: float) -> None:
        def ready() -> bool:
            self.progress()
            return letter.done

        if not ready():
            self.board.wait(ready, letter.other, letter.call, seconds if seconds > 0 else None)

    def flush(self) -> None:
        """Before leaving: what was sent gets through, if whom it is for is still there."""
        for other, letters in enumerate(self.unsent):
            if letters:
                try:
                    self.wait(letters[-1], 0.0)
                except CollectiveFailed:
                    self.unsent[other].clear()

    def progress(self) -> None:
        with self._lock:
            for other, _ in self.board.others:
                if self.unsent[other]:
                    self._push(other)
                counters = self.into[other].counters
                if counters[WRITTEN] > counters[TAKEN]:
                    self._pull(other)

    def _push(self, other: int) -> None:
        ring, letters = self.out[other], self.unsent[other]
        counters, moved = ring.counters, False
        while letters and counters[WRITTEN] - counters[TAKEN] < BLOCKS:
            letter, at = letters[0], counters[WRITTEN] % BLOCKS
            part = letter.bytes[letter.moved : letter.moved + BLOCK]
            header = ring.headers[at]
            header[TAG], header[CALL], header[BYTES] = letter.tag, letter.call, len(letter.bytes)
            ring.blocks[at][: len(part)].copy_(part)
            counters[WRITTEN] += 1
            letter.moved += len(part)
            moved = True
            if letter.moved == len(letter.bytes):
                letters.popleft()
                letter.done = True
        if moved:
            self.board.ring(other)

    def _pull(self, other: int) -> None:
        ring = self.into[other]
        counters = ring.counters
        while counters[WRITTEN] > counters[TAKEN]:
            at = counters[TAKEN] % BLOCKS
            message = self.arriving[other] or self._begin(other, ring.headers[at])
            part = message.bytes[message.moved : message.moved + BLOCK]
            part.copy_(ring.blocks[at][: len(part)])
            counters[TAKEN] += 1
            message.moved += len(part)
            self.arriving[other] = message
            if message.moved == len(message.bytes):
                self.arriving[other] = None
                if message.asked is None:
                    self.aside[other].append(message)
                else:
                    _deliver(message, message.asked)
        self.board.ring(other)

    def _begin(self, other: int, header: memoryview) -> Arriving:
        tag, call, length = header
        asked = next((letter for letter in self.asked[other] if letter.tag == tag), None)
        if asked is not None:
            self.asked[other].remove(asked)
        fits = asked is not None and asked.call == call
        place = asked.bytes if asked is not None and fits else torch.empty(length, dtype=torch.uint8)
        return Arriving(tag, call, place, asked)


def _deliver(message: Arriving, letter: Letter) -> None:
    if message.call != letter.call:
        letter.failure = CollectivesDiffer(
            f"rank {letter.other} sent {_numbers(message.call)} with tag {letter.tag}, and rank "
            f"{letter.mail.board.rank} receives {_numbers(letter.call)}; both must be the same"
        )
    else:
        if message.bytes is not letter.bytes:
            letter.bytes.copy_(message.bytes)
        settle(letter.tensor, letter.vector)
    letter.done = True


def _numbers(call: int) -> str:
    return calls.tell(call).removeprefix("send of ")
