"""Send and receive: between every two ranks, in each direction, a ring of blocks in the board's memory.

A send copies into free blocks and is done when all of it is there, so short messages never wait for the receiver; what
does not fit waits for its turn. Whoever waits anywhere moves everything that can be moved, in both directions: sends
and receives may be started and waited for in any order. A message that nobody has asked for yet is put aside.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.backend import calls
from paceline.backend.vectors import flat, settle
from paceline.backend.works import Underway
from paceline.errors import CollectiveFailed, CollectivesDiffer
from paceline.links.memory import Memory

if TYPE_CHECKING:
    from paceline.backend.traffic import Traffic

BLOCKS = 16
BLOCK = 64 << 10  # bytes

# A ring is its counters, on two cache lines since two ranks write them; a header for each block; and the blocks.
WRITTEN, TAKEN = 0, 8
TAG, CALL, BYTES, SITE = 0, 1, 2, 3  # places in a header; then the text of where it was sent
HEADER, TEXT_AT = 256, 32
HEADERS_AT = 128
BLOCKS_AT = HEADERS_AT + HEADER * BLOCKS
RING = BLOCKS_AT + BLOCKS * BLOCK


def size_of(ranks: int) -> int:
    return ranks * ranks * RING


class Ring:
    def __init__(self, room: memoryview) -> None:
        self.counters = room[:HEADERS_AT].cast("q")
        headers = [room[HEADERS_AT + HEADER * number :][:HEADER] for number in range(BLOCKS)]
        self.headers = [header[:TEXT_AT].cast("q") for header in headers]
        self.texts = [header[TEXT_AT:] for header in headers]
        self.blocks = torch.frombuffer(room[BLOCKS_AT:], dtype=torch.uint8).view(BLOCKS, BLOCK).unbind()


class Letter(Underway):
    """A send or a receive; `moved` counts the bytes of a send that have got through."""

    def __init__(self, traffic: Traffic, operation: int, tensor: Tensor, other: int, tag: int) -> None:
        vector = flat(tensor)
        super().__init__(traffic, calls.pack(operation, calls.DTYPE_NUMBERS[tensor.dtype], len(vector)), [tensor])
        self.tensor, self.vector, self.other, self.tag = tensor, vector, other, tag
        self.bytes = vector.view(torch.uint8)
        self.moved = 0

    @property
    def anybody(self) -> bool:  # type: ignore[override]
        return self.other < 0

    def missing(self) -> list[int]:
        return [self.other] if self.other >= 0 else [other for other, _ in self.traffic.board.others]

    def tell(self) -> str:
        whom = f"rank {self.other}" if self.other >= 0 else "any rank"
        word = "to" if self.call >> calls.OPERATION & 31 == calls.SEND else "from"
        return super().tell().replace(" at ", f" {word} {whom} (tag {self.tag}) at ", 1)

    def _source_rank(self) -> int:
        return self.other

    source_rank = _source_rank


@dataclass(eq=False)
class Arriving:
    """A message on its way into `bytes`: those of who asked for it, or a place aside."""

    tag: int
    call: int
    site: str
    bytes: Tensor
    asked: Letter | None
    moved: int = 0


class Mail:
    def __init__(self, memory: Memory, traffic: Traffic) -> None:
        self._traffic, self._board, self._lock = traffic, traffic.board, traffic.lock
        ranks = range(self._board.ranks)
        rooms = [[memory.take(RING) for _ in ranks] for _ in ranks]  # [from][to]
        self._out = [Ring(each) for each in rooms[self._board.rank]]
        self._into = [Ring(row[self._board.rank]) for row in rooms]
        self._unsent: list[deque[Letter]] = [deque() for _ in ranks]
        self._asked: list[Letter] = []  # in order
        self._aside: list[list[Arriving]] = [[] for _ in ranks]
        self._arriving: list[Arriving | None] = [None for _ in ranks]

    def busy(self) -> bool:
        return bool(self._asked) or any(self._unsent) or any(self._arriving)

    def promises(self) -> list[Letter]:
        with self._lock:
            return [letter for letter in self._letters() if letter.promises]

    def _letters(self) -> list[Letter]:
        arriving = [message.asked for message in self._arriving if message is not None and message.asked is not None]
        return [*self._asked, *arriving, *(letter for letters in self._unsent for letter in letters)]

    def send(self, letter: Letter) -> None:
        self._traffic.check()
        with self._lock:
            self._unsent[letter.other].append(letter)
        self.progress()

    def receive(self, letter: Letter) -> None:
        self._traffic.check()
        with self._lock:
            self._ask(letter)
        self.progress()

    def _ask(self, letter: Letter) -> None:
        for other in letter.missing():
            for message in self._aside[other]:
                if message.tag == letter.tag:
                    self._aside[other].remove(message)
                    letter.other = other
                    _deliver(message, letter)
                    return
            arriving = self._arriving[other]
            if arriving is not None and arriving.asked is None and arriving.tag == letter.tag:
                arriving.asked, letter.other = letter, other
                return
        self._asked.append(letter)

    def flush(self) -> None:
        """Before leaving: what was sent gets through, if whom it is for is still there."""
        for other, letters in enumerate(self._unsent):
            if letters:
                try:
                    letters[-1].wait()
                except CollectiveFailed:
                    self._unsent[other].clear()

    def let_go(self) -> list[Letter]:
        """Everything that was under way."""
        letters = self._letters()
        self._asked.clear()
        for other, unsent in enumerate(self._unsent):
            unsent.clear()
            self._arriving[other] = None
        return letters

    def progress(self) -> None:
        with self._lock, torch.inference_mode():  # as in an operation
            for other, _ in self._board.others:
                if self._unsent[other]:
                    self._push(other)
                counters = self._into[other].counters
                if counters[WRITTEN] > counters[TAKEN]:
                    self._pull(other)
        self._traffic.keep_promises()

    def _push(self, other: int) -> None:
        ring, letters = self._out[other], self._unsent[other]
        counters, moved = ring.counters, False
        while letters and counters[WRITTEN] - counters[TAKEN] < BLOCKS:
            letter, at = letters[0], counters[WRITTEN] % BLOCKS
            part = letter.bytes[letter.moved : letter.moved + BLOCK]
            if letter.moved == 0:
                header, site = ring.headers[at], str(letter.site).encode()[-(HEADER - TEXT_AT) :]
                header[TAG], header[CALL], header[BYTES], header[SITE] = (
                    letter.tag, letter.call, len(letter.bytes), len(site),
                )  # fmt: skip
                ring.texts[at][: len(site)] = site
            ring.blocks[at][: len(part)].copy_(part)
            counters[WRITTEN] += 1
            letter.moved += len(part)
            moved = True
            if letter.moved == len(letter.bytes):
                letters.popleft()
                letter.finish()
        if moved:
            self._board.ring(other)

    def _pull(self, other: int) -> None:
        ring = self._into[other]
        counters = ring.counters
        while counters[WRITTEN] > counters[TAKEN]:
            at = counters[TAKEN] % BLOCKS
            message = self._arriving[other] or self._begin(other, ring, at)
            part = message.bytes[message.moved : message.moved + BLOCK]
            part.copy_(ring.blocks[at][: len(part)])
            counters[TAKEN] += 1
            message.moved += len(part)
            self._arriving[other] = message
            if message.moved == len(message.bytes):
                self._arriving[other] = None
                if message.asked is None:
                    self._aside[other].append(message)
                else:
                    _deliver(message, message.asked)
        self._board.ring(other)

    def _begin(self, other: int, ring: Ring, at: int) -> Arriving:
        tag, call, length, text = ring.headers[at]
        site = bytes(ring.texts[at][:text]).decode(errors="replace")
        asked = next((each for each in self._asked if each.tag == tag and each.other in (other, -1)), None)
        if asked is not None:
            self._asked.remove(asked)
            asked.other = other
        fits = asked is not None and _content(asked.call) == _content(call)
        place = asked.bytes if asked is not None and fits else torch.empty(length, dtype=torch.uint8)
        return Arriving(tag, call, site, place, asked)


def _content(call: int) -> int:
    """Numbers and dtype, whether sent or received."""
    return call & ~(31 << calls.OPERATION)


def _deliver(message: Arriving, letter: Letter) -> None:
    if _content(message.call) != _content(letter.call):
        sent, wanted = (calls.tell(call).partition(" of ")[2] for call in (message.call, letter.call))
        failure = CollectivesDiffer(
            f"rank {letter.other} sent {sent} with tag {letter.tag} at {message.site}, and rank "
            f"{letter.traffic.board.rank} receives {wanted} at {letter.site}; both must be the same"
        )
        letter.finish(failure)
        letter.traffic.fail(failure)
        return
    if message.bytes is not letter.bytes:
        letter.bytes.copy_(message.bytes)
    settle(letter.tensor, letter.vector)
    letter.finish()
