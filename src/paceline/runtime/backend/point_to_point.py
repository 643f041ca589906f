"""Send and receive: between every two ranks, in each direction, a ring of blocks in the memory of the group.

    block    its header: tag, call, bytes and call site of the message that begins in it | its bytes

A send copies into free blocks and is done when all of it is there, so short messages never wait for the receiver; what
does not fit waits until blocks are free. A thread that waits for anything moves everything that can be moved, in both
directions: sends and receives may be started and waited for in any order. A message that was not asked for yet is put
aside.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.errors import CollectiveFailed, CollectivesDiffer
from paceline.runtime.backend import group_memory
from paceline.runtime.backend.collectives import copy_back, flat
from paceline.runtime.backend.work import Engine, PendingWork
from paceline.runtime.links.memory import Memory
from paceline.runtime.links.ring_buffer import Ring

BLOCKS = 16
BLOCK = 64 << 10  # bytes of a message in a block
HEADER, TEXT_AT = 256, 32  # bytes of a header; where the text of the call site begins in it
TAG, CALL, BYTES, SITE = 0, 1, 2, 3  # places in a header


def size_of(ranks: int) -> int:
    """The bytes that the rings of a group take."""
    return ranks * ranks * Ring.size(BLOCKS, HEADER + BLOCK)


class BlockRing:
    """The ring of blocks from one rank to another."""

    def __init__(self, raw: memoryview) -> None:
        self.ring = Ring(raw, BLOCKS, HEADER + BLOCK)
        blocks = [self.ring.slot(number) for number in range(BLOCKS)]
        self.headers = [block[:TEXT_AT].cast("q") for block in blocks]
        self.sites = [block[TEXT_AT:HEADER] for block in blocks]
        self.blocks = [torch.frombuffer(block[HEADER:], dtype=torch.uint8) for block in blocks]


class Transfer(PendingWork):
    """A send or a receive."""

    def __init__(self, engine: Engine, operation: int, tensor: Tensor, other: int, tag: int) -> None:
        vector = flat(tensor)
        super().__init__(
            engine, group_memory.pack(operation, group_memory.DTYPE_NUMBERS[tensor.dtype], len(vector)), [tensor]
        )
        #: The other rank; -1 while a receive from any source has no message yet.
        self.tensor, self.vector, self.other, self.tag = tensor, vector, other, tag
        self.bytes = vector.view(torch.uint8)
        #: The bytes of a send that have got through.
        self.moved = 0

    @property
    def any_source(self) -> bool:  # type: ignore[override]
        """Whether a message of any rank will do."""
        return self.other < 0

    def missing(self) -> list[int]:
        """The rank that it waits for; all others, if any will do."""
        return [self.other] if self.other >= 0 else [other for other, _ in self.engine.memory.others]

    def counterpart(self) -> str:
        """The other rank and the tag, as in ` to rank 1 (tag 0)`."""
        whom = f"rank {self.other}" if self.other >= 0 else "any rank"
        word = "to" if self.call >> group_memory.OPERATION & 31 == group_memory.SEND else "from"
        return f" {word} {whom} (tag {self.tag})"

    def source_rank(self) -> int:
        """The rank whose message it was."""
        return self.other

    _source_rank = source_rank


@dataclass(eq=False)
class Arriving:
    """A message on its way into `bytes`: those of the receive that asked for it, or bytes aside."""

    tag: int
    call: int
    site: str
    bytes: Tensor
    asked: Transfer | None
    moved: int = 0


class TransferEngine(Engine, Protocol):
    """What transfers ask of the progress engine besides what every work does."""

    def check(self) -> None:
        """Raise if the group cannot be used any longer."""

    def keep_promises(self) -> None:
        """Set the futures of what is done."""


class PointToPoint:
    """All sends and receives of a rank in its group."""

    def __init__(self, memory: Memory, engine: TransferEngine) -> None:
        self._engine, self._memory, self._lock = engine, engine.memory, engine.lock
        ranks, rank = range(self._memory.ranks), self._memory.rank
        size = Ring.size(BLOCKS, HEADER + BLOCK)
        raws = [[memory.take(size) for _ in ranks] for _ in ranks]  # [from][to]
        self._out = [BlockRing(raw) for raw in raws[rank]]
        self._into = [BlockRing(row[rank]) for row in raws]
        #: Per rank: sends of which something does not fit yet, in order.
        self._unsent: list[deque[Transfer]] = [deque() for _ in ranks]
        #: Receives whose message has not begun to arrive, in order.
        self._asked: list[Transfer] = []
        #: Per rank: messages that have arrived and were not asked for; and the one that is arriving.
        self._aside: list[list[Arriving]] = [[] for _ in ranks]
        self._arriving: list[Arriving | None] = [None for _ in ranks]

    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._asked) or any(self._unsent) or any(self._arriving)

    def promises(self) -> list[Transfer]:
        """The transfers whose future was returned."""
        with self._lock:
            return [transfer for transfer in self._transfers() if transfer.promises]

    def _transfers(self) -> list[Transfer]:
        arriving = [message.asked for message in self._arriving if message is not None and message.asked is not None]
        return [*self._asked, *arriving, *(transfer for transfers in self._unsent for transfer in transfers)]

    def send(self, transfer: Transfer) -> None:
        """Begin a send."""
        self._engine.check()
        with self._lock:
            self._unsent[transfer.other].append(transfer)
        self.progress()

    def receive(self, transfer: Transfer) -> None:
        """Begin a receive."""
        self._engine.check()
        with self._lock:
            self._ask(transfer)
        self.progress()

    def _ask(self, transfer: Transfer) -> None:
        """Take a message that lies aside or is arriving, else ask for one to come."""
        for other in transfer.missing():
            for message in self._aside[other]:
                if message.tag == transfer.tag:
                    self._aside[other].remove(message)
                    transfer.other = other
                    _deliver(message, transfer)
                    return
            arriving = self._arriving[other]
            if arriving is not None and arriving.asked is None and arriving.tag == transfer.tag:
                arriving.asked, transfer.other = transfer, other
                return
        self._asked.append(transfer)

    def flush(self) -> None:
        """Wait until what was sent has got through, to the ranks that are alive."""
        for other, transfers in enumerate(self._unsent):
            if transfers:
                try:
                    transfers[-1].wait()
                except CollectiveFailed:
                    self._unsent[other].clear()

    def let_go(self) -> list[Transfer]:
        """Forget everything that is under way, and return it."""
        transfers = self._transfers()
        self._asked.clear()
        for other, unsent in enumerate(self._unsent):
            unsent.clear()
            self._arriving[other] = None
        return transfers

    def progress(self) -> None:
        """Move all that can be moved without waiting."""
        with self._lock, torch.inference_mode():  # as in a collective
            for other, _ in self._memory.others:
                if self._unsent[other]:
                    self._push(other)
                if not self._into[other].ring.empty:
                    self._pull(other)
        self._engine.keep_promises()

    def _push(self, other: int) -> None:
        """Copy what is unsent into free blocks."""
        blocks, transfers = self._out[other], self._unsent[other]
        ring, moved = blocks.ring, False
        while transfers and not ring.full:
            transfer, at = transfers[0], ring.sent[0] % BLOCKS
            part = transfer.bytes[transfer.moved : transfer.moved + BLOCK]
            if transfer.moved == 0:
                header, site = blocks.headers[at], str(transfer.site).encode()[-(HEADER - TEXT_AT) :]
                header[TAG], header[CALL], header[BYTES], header[SITE] = (
                    transfer.tag,
                    transfer.call,
                    len(transfer.bytes),
                    len(site),
                )
                blocks.sites[at][: len(site)] = site
            blocks.blocks[at][: len(part)].copy_(part)
            ring.sent[0] += 1
            transfer.moved += len(part)
            moved = True
            if transfer.moved == len(transfer.bytes):
                transfers.popleft()
                transfer.finish()
        if moved:
            self._memory.doorbells[other].ring()

    def _pull(self, other: int) -> None:
        """Copy what lies in blocks into the receives that asked for it, or aside."""
        blocks = self._into[other]
        ring = blocks.ring
        while not ring.empty:
            at = ring.taken[0] % BLOCKS
            message = self._arriving[other] or self._begin(other, blocks, at)
            part = message.bytes[message.moved : message.moved + BLOCK]
            part.copy_(blocks.blocks[at][: len(part)])
            ring.taken[0] += 1
            message.moved += len(part)
            self._arriving[other] = message
            if message.moved == len(message.bytes):
                self._arriving[other] = None
                if message.asked is None:
                    self._aside[other].append(message)
                else:
                    _deliver(message, message.asked)
        self._memory.doorbells[other].ring()

    def _begin(self, other: int, blocks: BlockRing, at: int) -> Arriving:
        """Read the header of a message, and find the receive that it is for."""
        tag, call, length, text = blocks.headers[at]
        site = bytes(blocks.sites[at][:text]).decode(errors="replace")
        receive = next((each for each in self._asked if each.tag == tag and each.other in (other, -1)), None)
        if receive is not None:
            self._asked.remove(receive)
            receive.other = other
        fits = receive is not None and _content(receive.call) == _content(call)
        place = receive.bytes if receive is not None and fits else torch.empty(length, dtype=torch.uint8)
        return Arriving(tag, call, site, place, receive)


def _content(call: int) -> int:
    """Numbers and dtype of a call, whether sent or received."""
    return call & ~(31 << group_memory.OPERATION)


def _deliver(message: Arriving, transfer: Transfer) -> None:
    """Finish a receive with a message that is complete."""
    if _content(message.call) != _content(transfer.call):
        sent, expected = (group_memory.describe(call).partition(" of ")[2] for call in (message.call, transfer.call))
        failure = CollectivesDiffer(
            f"rank {transfer.other} sent {sent} with tag {transfer.tag} at {message.site}, and rank "
            f"{transfer.engine.memory.rank} receives {expected} at {transfer.site}; both must be the same"
        )
        transfer.finish(failure)
        transfer.engine.fail(failure)
        return
    if message.bytes is not transfer.bytes:
        transfer.bytes.copy_(message.bytes)
    copy_back(transfer.tensor, transfer.vector)
    transfer.finish()
