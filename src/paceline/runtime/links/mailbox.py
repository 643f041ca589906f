"""`MessageChannel` on one machine: a ring of messages in shared memory, from one stage of a pipeline to a neighbour.

A message stays in its slot until it is taken, which copies it out:

    how many tensors | of each: its dtype, shape and strides | the bytes of the first | of the second | ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.errors import JobError
from paceline.runtime.links.doorbell import Doorbell
from paceline.runtime.links.memory import Memory, lines
from paceline.runtime.links.ring_buffer import Ring
from paceline.runtime.links.waiting import Waiter

if TYPE_CHECKING:
    from paceline.runtime.links import MessageChannel

DIMENSIONS = 8
ENTRY = 2 + 2 * DIMENSIONS  # type, number of dimensions, sizes, strides
TYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
NOTHING = -1  # in the place of a type: there is no gradient of this one


@dataclass(frozen=True)
class MailShape:
    """What a mailbox must have room for."""

    channel: tuple[int, int]  # from which stage to which
    tensors: int  # most in a message
    bytes: int  # of the largest message
    slots: int
    line: int = 0  # which of several pipelines that lie beside each other

    @property
    def head(self) -> int:
        """The integers that describe a message."""
        return 1 + ENTRY * self.tensors

    @property
    def slot(self) -> int:
        """The bytes of a slot."""
        return lines(8 * self.head) + lines(self.bytes)

    @property
    def size(self) -> int:
        """The bytes that `MailSlots` takes of a memory."""
        return Ring.size(self.slots, self.slot)


def bytes_of(message: Sequence[Tensor | None]) -> int:
    """Return the bytes of a message's tensors."""
    return sum(tensor.nbytes for tensor in message if tensor is not None)


class MailSlots:
    """The memory of a mailbox, which both ends make over the same place."""

    def __init__(self, memory: Memory, shape: MailShape) -> None:
        self.shape = shape
        self.ring = Ring(memory.take(shape.size), shape.slots, shape.slot)
        slots = [self.ring.slot(number) for number in range(shape.slots)]
        start = lines(8 * shape.head)
        #: The integers that describe the message in each slot, and its bytes.
        self.heads = [slot[: 8 * shape.head].cast("q") for slot in slots]
        self.raws = [
            torch.frombuffer(slot[start:], dtype=torch.uint8) if shape.bytes else torch.empty(0, dtype=torch.uint8)
            for slot in slots
        ]


class Mailbox:
    """An end of a mailbox. The sending stage calls `put`, the receiving one `take`."""

    def __init__(self, slots: MailSlots, peer: int, doorbell: Doorbell, waiter: Waiter) -> None:
        """
        Args:
            slots: the memory of the mailbox.
            peer: the worker at the other end, and its `doorbell`.
            waiter: how this worker waits.
        """
        self.slots, self.waited = slots, 0
        self._ring, self._doorbell, self._waiter = slots.ring, doorbell, waiter
        self._peer = f"worker {peer}"

    @property
    def full(self) -> bool:
        """Whether `put` would wait for the receiver."""
        return self._ring.full

    @property
    def empty(self) -> bool:
        """Whether `take` would wait for the sender."""
        return self._ring.empty

    def put(self, message: Sequence[Tensor | None]) -> int:
        """Send tensors without gaps, and return their bytes. Waits while the mailbox is full."""
        if self.full:
            self.waited += self._waiter.until(lambda: not self.full, lambda: self._peer)
        number = self._ring.sent[0]
        self._write(number % self._ring.slots, message)
        self._ring.sent[0] = number + 1
        self._doorbell.ring()
        return bytes_of(message)

    def take(self) -> list[Tensor | None]:
        """Return a copy of the next message. Waits while the mailbox is empty."""
        if self.empty:
            self.waited += self._waiter.until(lambda: not self.empty, lambda: self._peer)
        number = self._ring.taken[0]
        message = self._read(number % self._ring.slots)
        self._ring.taken[0] = number + 1
        self._doorbell.ring()
        return message

    def _write(self, slot: int, message: Sequence[Tensor | None]) -> None:
        shape = self.slots.shape
        head, raw, start = self.slots.heads[slot], self.slots.raws[slot], 0
        head[0] = len(message)
        for number, tensor in enumerate(message):
            at = 1 + ENTRY * number
            if tensor is None:
                head[at] = NOTHING
                continue
            if start + tensor.nbytes > shape.bytes:
                raise JobError(
                    f"a message from stage {shape.channel[0]} to {shape.channel[1]} is larger than that of "
                    f"the first batch, {shape.bytes} bytes; let all samples have one size"
                )
            head[at], head[at + 1] = TYPES.index(tensor.dtype), tensor.dim()
            for place, number_of in enumerate((*tensor.shape, *tensor.stride()), start=at + 2):
                head[place] = number_of
            part = raw[start : start + tensor.nbytes].view(tensor.dtype)
            part.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
            start += lines(tensor.nbytes)

    def _read(self, slot: int) -> list[Tensor | None]:
        head, raw, start = self.slots.heads[slot], self.slots.raws[slot], 0
        message: list[Tensor | None] = []
        for number in range(head[0]):
            at = 1 + ENTRY * number
            if head[at] == NOTHING:
                message.append(None)
                continue
            dtype, middle = TYPES[head[at]], at + 2 + head[at + 1]
            shape, strides = head[at + 2 : middle].tolist(), head[middle : middle + head[at + 1]].tolist()
            size = prod(shape) * dtype.itemsize
            message.append(raw[start : start + size].view(dtype).as_strided(shape, strides).clone())
            start += lines(size)
        return message


if TYPE_CHECKING:
    _: type[MessageChannel] = Mailbox
