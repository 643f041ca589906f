"""A mailbox between two neighbouring stages: messages of tensors, taken in the order they were sent.

    sent | taken |  slot 0: how many, and of each its type and shape | bytes ...  |  slot 1: ...

One sends, one takes, so two counters are enough. A message stays in its slot until it is taken, which copies it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from paceline.core.schedules.clock import Channel
from paceline.errors import JobError
from paceline.links.memory import Memory
from paceline.stages.segment import Blueprint

ALIGN = 64
DIMENSIONS = 8
ENTRY = 2 + 2 * DIMENSIONS  # type, number of dimensions, sizes, strides
TYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
NOTHING = -1  # in the place of a type: there is no gradient of this one


@dataclass(frozen=True)
class MailShape:
    channel: Channel  # from which stage to which
    tensors: int  # most in a message
    bytes: int
    slots: int

    @property
    def head(self) -> int:
        return 1 + ENTRY * self.tensors

    @property
    def size(self) -> int:
        return 2 * ALIGN + self.slots * (8 * self.head + self.bytes + 2 * ALIGN)


def mail_of(blueprint: Blueprint) -> Iterator[MailShape]:
    """Of every two neighbouring stages that lie with different workers, one each way."""
    for stage, (here, there) in enumerate(zip(blueprint.homes, blueprint.homes[1:], strict=False)):
        if here != there:
            slots, count = blueprint.slots, len(blueprint.needs[stage + 1])
            yield MailShape((stage, stage + 1), count + blueprint.carries_chance, blueprint.bytes_on[stage], slots)
            yield MailShape((stage + 1, stage), count, blueprint.bytes_back[stage], slots)


class Mailbox:
    def __init__(self, memory: Memory, shape: MailShape) -> None:
        self.shape = shape
        self._sent, self._taken = memory.ints(1), memory.ints(1)
        self._heads = [memory.ints(shape.head) for _ in range(shape.slots)]
        self._raws = [memory.tensor(shape.bytes, torch.uint8) for _ in range(shape.slots)]

    @property
    def full(self) -> bool:
        return self._sent[0] - self._taken[0] >= self.shape.slots

    @property
    def empty(self) -> bool:
        return self._sent[0] == self._taken[0]

    def put(self, message: Sequence[Tensor | None]) -> int:
        """The bytes that were sent. Its tensors have no gaps. Not to be called while it is full."""
        slot = self._sent[0] % self.shape.slots
        head, raw, start = self._heads[slot], self._raws[slot], 0
        head[0] = len(message)
        for number, tensor in enumerate(message):
            at = 1 + ENTRY * number
            if tensor is None:
                head[at] = NOTHING
                continue
            if start + tensor.nbytes > self.shape.bytes:
                raise JobError(
                    f"a message from stage {self.shape.channel[0]} to {self.shape.channel[1]} is larger than that of "
                    f"the first batch, {self.shape.bytes} bytes; let all samples have one size"
                )
            head[at], head[at + 1] = TYPES.index(tensor.dtype), tensor.dim()
            for place, number_of in enumerate((*tensor.shape, *tensor.stride()), start=at + 2):
                head[place] = number_of
            part = raw[start : start + tensor.nbytes].view(tensor.dtype)
            part.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
            start += -(-tensor.nbytes // ALIGN) * ALIGN
        self._sent[0] += 1
        return start

    def take(self) -> list[Tensor | None]:
        """A copy of what comes next. Not to be called while it is empty."""
        slot = self._taken[0] % self.shape.slots
        head, raw, start = self._heads[slot], self._raws[slot], 0
        found: list[Tensor | None] = []
        for number in range(head[0]):
            at = 1 + ENTRY * number
            if head[at] == NOTHING:
                found.append(None)
                continue
            dtype, middle = TYPES[head[at]], at + 2 + head[at + 1]
            shape, strides = head[at + 2 : middle].tolist(), head[middle : middle + head[at + 1]].tolist()
            size = prod(shape) * dtype.itemsize
            found.append(raw[start : start + size].view(dtype).as_strided(shape, strides).clone())
            start += -(-size // ALIGN) * ALIGN
        self._taken[0] += 1
        return found
