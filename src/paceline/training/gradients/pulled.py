"""Coded pulls: what a server answers a push with, as the difference between the newest version and what the worker has.

    server    difference = newest version - what this worker has  ->  codec.encode  ->  answer
              what this worker has  +=  what it reads from the answer
    worker    its parameters        +=  what it reads from the answer

Both add the same numbers, so the server knows to the last bit what the worker computes with. What a codec leaves out of
one answer is part of the next difference: nothing is owed, and nothing is lost. The first answer to a worker is whole,
and so is the one after a pull; the tail of a gradient's message says that a worker wants it so. Tensors that codecs
leave alone travel as they are, not as differences.

    memory    | worker, batch | what the worker has | what the codec remembers | answer |
    answer    | WHOLE, CODED or APART | the shard's values, or a message |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from paceline.errors import FrameError
from paceline.training.gradients.encoder import Loops, PushedMessage, chance_of
from paceline.training.gradients.message import MessageShape, matrix, up

#: The whole values, which the server notes; the difference to what it has noted; the whole values, without a note.
WHOLE, CODED, APART = 0, 1, 2
HEAD = 64  # bytes before what is answered
PART = 1 << 20  # tells the random numbers of answers from those of gradients


class PulledView:
    """What one worker has of one shard, and the answer that it got last; all of it in one run of bytes."""

    def __init__(self, shape: MessageShape, seed: int, raw: Tensor | None = None) -> None:
        self.shape, self.seed, self._loops = shape, seed, Loops(shape.codec, shape.dtype)
        raw = torch.zeros(self.size(shape), dtype=torch.uint8) if raw is None else raw
        starts = list(accumulate(_sizes(shape), initial=0))
        #: The worker's process, and the batch of the push that was answered last; -1: none.
        self.whose = raw[:16].view(torch.int64)
        self._has = raw[starts[1] : starts[1] + _values(shape)]
        flat = self._has.view(shape.dtype)
        self.values, self.buffers = shape.shard.parameter_views(flat), shape.shard.buffer_views(flat)
        self._remembered: dict[int, Tensor] = {}
        for place, start in zip(shape.coded, starts[2:-2], strict=True):
            size = shape.codec.remembers(shape.shard.parameters[place].shape)
            if size:
                count = torch.Size(size).numel() * shape.dtype.itemsize
                self._remembered[place] = raw[start : start + count].view(shape.dtype).view(size)
        self._answer = raw[starts[-2] : starts[-1]]
        self._message = PushedMessage(shape, seed, self._answer[HEAD:])
        self.whose.fill_(-1)

    @staticmethod
    def size(shape: MessageShape) -> int:
        """Return the bytes of such a memory."""
        return sum(_sizes(shape))

    @property
    def coded(self) -> bool:
        return int(self._answer[0]) == CODED

    @property
    def bytes(self) -> int:
        """The bytes of the last answer, without its head."""
        return self._message.message.bytes if self.coded else _values(self.shape)

    @property
    def answer(self) -> memoryview:
        view: memoryview = self._answer[: HEAD + self.bytes].numpy().data
        return view

    def whole(self, newest: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        """Answer with the newest version as it is."""
        for mine, value in zip((*self.values, *self.buffers), (*newest, *buffers), strict=True):
            mine.copy_(value)
        for memory in self._remembered.values():
            memory.zero_()
        self._answer[0] = WHOLE
        self._answer[HEAD : HEAD + len(self._has)] = self._has

    def difference(self, newest: Sequence[Tensor], buffers: Sequence[Tensor], version: int) -> None:
        """Answer with what a message says of the difference to this version."""
        shape, message = self.shape, self._message.message
        flags, unread = [1.0] * len(newest), message.words
        for place, fields in zip(shape.coded, message.fields, strict=True):
            difference = newest[place].detach() - self.values[place]
            if not bool(difference.sum().isfinite()):
                difference, flags[place] = torch.zeros_like(difference), float("nan")
            words = [unread] if shape.codec.variable else []
            chance = chance_of(shape.codec, self.seed, version, PART, place)
            self._loops.encode(matrix(difference), [*fields, *words], chance, self._remembered.get(place))
            if shape.codec.variable:
                unread = unread[int(fields[0]) :]
        for place, view in zip(shape.dense, message.dense, strict=True):
            view.copy_(newest[place].detach())
        for view, buffer in zip(message.buffers, buffers, strict=True):
            view.copy_(buffer)
        message.flat[-len(flags) - 2 :].copy_(torch.tensor([*flags, 0.0, 0.0], dtype=shape.dtype))
        self._answer[0] = CODED
        add_answer(self._message, self.values, self.buffers, version)


class PulledReader:
    """A worker's end: adds answers to the parameters that it computes with."""

    def __init__(self, shape: MessageShape, seed: int) -> None:
        self._shape, self._message = shape, PushedMessage(shape, seed)

    def read(
        self, body: memoryview, raw: memoryview, values: Sequence[Tensor], buffers: Sequence[Tensor], version: int
    ) -> bool:
        """Take an answer into a shard's parameters, whose bytes are `raw`; return whether the server has noted it.

        Raises:
            FrameError: it is none.
        """
        size, message = len(body) - HEAD, self._message.message
        if size < 0 or body[0] not in (WHOLE, CODED, APART) or (body[0] != CODED and size != len(raw)):
            raise FrameError("body", f"an answer of {len(body)} bytes, where {HEAD} and {len(raw)} are due")
        if body[0] != CODED:
            raw[:] = body[HEAD:]
            return body[0] == WHOLE
        if not self._shape.fixed <= size <= self._shape.most:
            raise FrameError("body", f"a coded answer of {size} bytes, where at least {self._shape.fixed} are due")
        message.raw.numpy()[:size] = body[HEAD:]
        message.check_words(size - self._shape.fixed)
        message.check()
        add_answer(self._message, values, buffers, version)
        return True


def apart(values: memoryview) -> memoryview:
    """Return an answer with the whole values, of which the server takes no note."""
    return memoryview(bytes([APART]) + bytes(HEAD - 1) + bytes(values))


def add_answer(answer: PushedMessage, values: Sequence[Tensor], buffers: Sequence[Tensor], version: int) -> None:
    """Add what a message says to what a worker has."""
    read, shape = answer.gradients(version), answer.shape
    for place, (mine, source) in enumerate(zip(values, read, strict=True)):
        assert source is not None
        mine.copy_(source) if place in shape.dense else mine.add_(source)
    for mine, source in zip(buffers, answer.message.buffers, strict=True):
        mine.copy_(source)


def _values(shape: MessageShape) -> int:
    return shape.shard.length * shape.dtype.itemsize


def _sizes(shape: MessageShape) -> list[int]:
    """Return the bytes of the parts of a memory."""
    spans, codec = shape.shard.parameters, shape.codec
    remembered = [torch.Size(codec.remembers(spans[n].shape) or (0,)).numel() for n in shape.coded]
    sizes = [up(count * shape.dtype.itemsize) for count in remembered]
    return [HEAD, up(_values(shape)), *sizes, HEAD + up(max(_values(shape), shape.most))]
