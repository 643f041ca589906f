"""Both ends of the coded wire: gradients that a worker writes as messages, and what a server answers a push with.

    gradient + owed  ->  codec.encode  ->  message;  what it leaves out is owed from now on

A message is written from what was owed before, and only `finalize` makes what it left out the new state: an exchange
that failed, since a worker died in it, is made again as if it had never begun.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paceline.algorithms.chance import mix
from paceline.algorithms.codecs import Codec, Fields, TwoPartCodec
from paceline.algorithms.codecs.narrow import HIGHEST, LOWEST, Bfloat16, Half, Int8
from paceline.algorithms.codecs.quantized import OneBit, Qsgd, Ternary
from paceline.algorithms.codecs.sparse import Threshold, TopK
from paceline.algorithms.rules import Memory
from paceline.errors import FrameError
from paceline.kernels import codecs
from paceline.training.gradients.message import GradientMessage, MessageShape, matrix, up
from paceline.training.gradients.replica import Replica
from paceline.training.parameters.layout import Layout, trainable
from paceline.training.parameters.worker_state import WorkerState, restore_memories, state_of_memories

OWED = "owed"  # the kind of what an encoder keeps, in checkpoints


class GradientEncoder:
    """Writes the messages of one worker; `numbers` says which of the replica's parameters each shard has."""

    def __init__(self, codec: Codec, layout: Layout, numbers: Sequence[Sequence[int]], seed: int) -> None:
        self.codec, self.seed, self.numbers, self._loops = codec, seed, numbers, Loops(codec, layout.dtype)
        self.shapes = [MessageShape(codec, shard, layout.dtype) for shard in layout.shards]
        #: What the worker owes, and what codecs remember, for each parameter of the replica; part of a checkpoint.
        self.residuals: list[Memory] = [{} for _ in range(sum(map(len, numbers)))]
        #: What will be owed when the message that was written last has arrived.
        self._next: list[Memory] = [{} for _ in self.residuals]
        for shape, mine in zip(self.shapes, numbers, strict=True):
            for place in shape.coded:
                size = shape.shard.parameters[place].shape
                for memories in (self.residuals, self._next):
                    if codec.feedback:
                        memories[mine[place]]["owed"] = torch.zeros(size, dtype=layout.dtype)
                    if remembered := codec.remembers(size):
                        memories[mine[place]]["remembered"] = torch.zeros(remembered, dtype=layout.dtype)
        self._scratch = torch.zeros(
            max((max(_sizes(shape), default=0) for shape in self.shapes), default=0), dtype=layout.dtype
        )
        self._given = [False] * len(self.residuals)
        #: What is left of each gradient whose message is summed in two, until its second part is written.
        self._left: dict[int, Tensor] = {}
        self._pushed: list[PushedMessage] | None = None

    def write(
        self,
        shard: int,
        gradients: Sequence[Tensor | None],
        buffers: Sequence[Tensor],
        tail: tuple[float, float],
        message: GradientMessage,
        update: int,
        part: int,
        begins: bool = False,
    ) -> None:
        """Write the gradients of a shard's parameters; `part` tells this worker's part of an update from others.

        With `begins` only the first part is coded, where messages are summed in two; `finish` writes the second.
        """
        shape, mine, flags = message.shape, self.numbers[shard], [1.0 if g is not None else 0.0 for g in gradients]
        unread = message.words
        for place, fields in zip(shape.coded, message.fields, strict=True):
            gradient = gradients[place]
            words = [unread] if self.codec.variable else []
            chance = chance_of(self.codec, self.seed, update, part, place)
            finite = self._code(
                mine[place], gradient, [*fields, *words], shape.shard.parameters[place].shape, chance, begins
            )
            if gradient is not None and not finite:
                flags[place] = float("nan")
            if self.codec.variable:
                unread = unread[int(fields[0]) :]
        for place, view in zip(shape.dense, message.dense, strict=True):
            gradient = gradients[place]
            view.zero_() if gradient is None else view.copy_(gradient)
        for view, buffer in zip(message.buffers, buffers, strict=False):
            view.copy_(buffer)
        message.flat[-len(flags) - 2 :].copy_(torch.tensor([*flags, *tail], dtype=message.flat.dtype))

    def finish(self, shard: int, message: GradientMessage) -> None:
        """Write the second part of a message whose first one has been summed."""
        assert isinstance(self.codec, TwoPartCodec)
        for place, fields in zip(message.shape.coded, message.fields, strict=True):
            self.codec.finish(matrix(self._left[self.numbers[shard][place]]), fields)

    def remember(self, shard: int, message: GradientMessage) -> None:
        """Remember of the sum of all messages what the next one begins with."""
        assert isinstance(self.codec, TwoPartCodec)
        for place, fields in zip(message.shape.coded, message.fields, strict=True):
            self.codec.remember(fields, self._next[self.numbers[shard][place]]["remembered"])

    def finalize(self) -> None:
        """Take note that the messages which were written last have arrived."""
        for number, present in enumerate(self._given):
            if present:
                self.residuals[number], self._next[number] = self._next[number], self.residuals[number]
        self._given = [False] * len(self._given)

    def state(self) -> WorkerState:
        """Return what is owed and remembered, for a checkpoint."""
        return state_of_memories(OWED, self.residuals)

    def restore(self, saved: WorkerState) -> None:
        """Take the state of a checkpoint; a worker that was no part of the run then owes nothing."""
        if saved.only(OWED).tensors:
            restore_memories(self.residuals, saved, OWED)

    def _code(
        self,
        number: int,
        gradient: Tensor | None,
        fields: Sequence[Tensor],
        size: Sequence[int],
        chance: int,
        begins: bool,
    ) -> bool:
        """Write one tensor; return whether it was finite. One that is not, or is missing, is written as zeros."""
        old, new = self.residuals[number], self._next[number]
        total = new["owed"] if "owed" in new else self._scratch[: torch.Size(size).numel()].view(size)
        remembered = new.get("remembered")
        if remembered is not None:
            remembered.copy_(old["remembered"])
        good = gradient is not None and self._loops.add_owed(old.get("owed"), gradient, total)
        self._given[number] = good and bool(new)
        if not good:
            total = torch.zeros_like(total)
        if begins and isinstance(self.codec, TwoPartCodec):
            assert remembered is not None
            self._left[number] = total
            self.codec.begin(matrix(total), fields, chance, remembered)
        else:
            self._loops.encode(matrix(total), fields, chance, remembered)
        return good

    def through(
        self, gradients: Sequence[Tensor | None], buffers: Sequence[Tensor], update: int, part: int
    ) -> list[Tensor | None]:
        """Write the messages of all shards and return what a server reads from them. They count as having arrived."""
        if self._pushed is None:
            self._pushed = [PushedMessage(shape, self.seed) for shape in self.shapes]
        decoded: list[Tensor | None] = [None] * len(gradients)
        for shard, (pushed, mine) in enumerate(zip(self._pushed, self.numbers, strict=True)):
            moving = buffers if shard == 0 else []
            self.write(shard, [gradients[n] for n in mine], moving, (0.0, 0.0), pushed.message, update, part)
            for number, gradient in zip(mine, pushed.gradients(update), strict=True):
                decoded[number] = gradient
        self.finalize()
        return decoded

    def pushed_bytes(self, shard: int) -> int:
        """Return the bytes of the message that was written last for a shard."""
        return self._pushed[shard].message.bytes if self._pushed is not None else self.shapes[shard].fixed


class PushedMessage:
    """A message to a shard, and the gradients that the shard reads from it."""

    def __init__(self, shape: MessageShape, seed: int, raw: Tensor | None = None) -> None:
        self.shape = shape
        self.message = GradientMessage(shape, torch.zeros(shape.most, dtype=torch.uint8) if raw is None else raw)
        spans, self._decoder = shape.shard.parameters, GradientDecoder(shape, seed)
        self._decoded = [
            torch.zeros(span.shape if n in shape.coded else 0, dtype=shape.dtype) for n, span in enumerate(spans)
        ]

    def gradients(self, update: int) -> list[Tensor | None]:
        """Return the gradients, in memory that the next message's replace."""
        self._decoder.add(self.message, self._decoded, True, update)
        tensors: list[Tensor | None] = list(self._decoded)
        for number, view in zip(self.shape.dense, self.message.dense, strict=True):
            tensors[number] = view
        for number, flag in enumerate(self.message.flags.tolist()):
            if not flag:
                tensors[number] = None
            elif flag != flag and number in self.shape.coded:
                self._decoded[number].fill_(float("nan"))
        return tensors


class GradientDecoder:
    """Sums messages: the same numbers, in the same order, wherever it is done.

    Chance that workers do not share is no part of what a message means, so it is not needed here.
    """

    def __init__(self, shape: MessageShape, seed: int) -> None:
        self.shape, self.seed, self._loops = shape, seed, Loops(shape.codec, shape.dtype)
        self._scratch = torch.zeros(max(_sizes(shape), default=0), dtype=shape.dtype)

    def add(self, message: GradientMessage, into: Sequence[Tensor], first: bool, update: int) -> None:
        """Add the coded gradients of a message to those of a shard's parameters; the first one replaces them."""
        shape, codec = self.shape, self.shape.codec
        for place, fields in zip(shape.coded, message.all_fields(), strict=True):
            target = into[place]
            out = target if first else self._scratch[: target.numel()].view(target.shape)
            self._loops.decode(fields, matrix(out), chance_of(codec, self.seed, update, 0, place))
            if not first:
                target.add_(out)


def encoder_of(codec: Codec | None, layout: Layout, replica: Replica) -> GradientEncoder | None:
    """Make the encoder of a worker's replica; None without a codec."""
    if codec is None:
        return None
    numbers = {id(parameter): n for n, parameter in enumerate(replica.parameters)}
    named = trainable(replica.module)
    owned = [[numbers[id(named[span.name])] for span in shard.parameters] for shard in layout.shards]
    return GradientEncoder(codec, layout, owned, replica.job.seed)


def chance_of(codec: Codec, seed: int, update: int, part: int, place: int) -> int:
    """Return the seed of a tensor's random numbers: a function of seed, update, chunk and tensor."""
    return mix(seed, update, 0 if codec.shares_chance else 1 + part, place)


def _sizes(shape: MessageShape) -> list[int]:
    return [shape.shard.parameters[n].size for n in shape.coded]


# How a codec is computed here: by generated code where there is a compiler, else by PyTorch. The bits are the same.

#: What encodes by native code: called with the loops, the matrix, the fields, and what follows from codec and chance.
ENCODE: dict[type, tuple[Callable[..., bool], Callable[[Any, int], tuple[float, ...]]]] = {
    Half: (codecs.encode_half, lambda codec, chance: ()),
    Bfloat16: (codecs.encode_bfloat16, lambda codec, chance: ()),
    Int8: (codecs.encode_int8, lambda codec, chance: (LOWEST, HIGHEST)),
    Qsgd: (codecs.encode_qsgd, lambda codec, chance: (codec.bits, chance)),
    Ternary: (codecs.encode_ternary, lambda codec, chance: (chance,)),
    OneBit: (codecs.encode_onebit, lambda codec, chance: ()),
    Threshold: (codecs.encode_threshold, lambda codec, chance: (codec.threshold,)),
    TopK: (codecs.encode_topk, lambda codec, chance: ()),
}
#: What decodes by native code: called with the loops, the fields and the matrix, and what follows from the codec.
DECODE: dict[type, tuple[Callable[..., None], Callable[[Any], tuple[int, ...]]]] = {
    Int8: (codecs.decode_int8, lambda codec: ()),
    Qsgd: (codecs.decode_qsgd, lambda codec: (codec.bits,)),
    Ternary: (codecs.decode_ternary, lambda codec: ()),
    OneBit: (codecs.decode_onebit, lambda codec: ()),
}


class Loops:
    """Encodes and decodes as a codec does."""

    def __init__(self, codec: Codec, dtype: torch.dtype) -> None:
        self.codec = codec
        #: The loops of this machine; None where there is no compiler, or for another dtype.
        self._native = codecs.native() if dtype == torch.float32 else None
        self._encode, self._decode = ENCODE.get(type(codec)), DECODE.get(type(codec))

    def encode(self, total: Tensor, fields: Fields, chance: int, memory: Tensor | None) -> None:
        """Write a message, and leave in `total` what it leaves out."""
        if self._native is not None and self._encode is not None:
            encode, arguments = self._encode
            if encode(self._native, total, fields, *arguments(self.codec, chance)):
                return
        self.codec.encode(total, fields, chance, memory)

    def decode(self, fields: Fields, out: Tensor, chance: int) -> None:
        """Write the gradient of a message into `out`, which has no gaps."""
        if self._native is None or self._decode is None:
            self.codec.decode(fields, out, chance)
            return
        decode, arguments = self._decode
        decode(self._native, fields, out, *arguments(self.codec))

    def add_owed(self, owed: Tensor | None, gradient: Tensor, total: Tensor) -> bool:
        """Write a gradient and what is owed into `total`; return whether the gradient is finite."""
        if self._native is not None and gradient.is_contiguous():
            return codecs.add_owed(self._native, owed, gradient, total)
        if owed is None:
            total.copy_(gradient)
        else:
            torch.add(owed, gradient, out=total)
        return bool(gradient.isfinite().all())


# Coded pulls: what a server answers a push with, as the difference between the newest version and what the worker has.
#     server    difference = newest version - what this worker has  ->  codec.encode  ->  answer
#               what this worker has  +=  what it reads from the answer
#     worker    its parameters        +=  what it reads from the answer
#
# Both add the same numbers, so the server knows to the last bit what the worker computes with. What a codec leaves
# out of one answer is part of the next difference: nothing is owed, and nothing is lost. The first answer to a worker
# is whole, and so is the one after a pull; the tail of a gradient's message says that a worker wants it so. Tensors
# that codecs leave alone travel as they are, not as differences.
#
# An answer is of the version that its push has made. One that is labelled with a later version, as where a backup
# confirms several pushes at once or a push comes again, is whole, and no note is taken of it.
#
#     memory    | worker, batch, version | what the worker has | what the codec remembers | answer |
#     answer    | WHOLE, CODED or APART | worker, base | the shard's values, or a message |
#
# Worker and base tell which gradient of the batch the shard has taken, and the version that it was computed from: it is
# another worker's, or an earlier one, where a batch was leased twice.

#: The whole values, which the server notes; the difference to what it has noted; the whole values, without a note.
WHOLE, CODED, APART = 0, 1, 2
HEAD = 64  # bytes before what is answered
TAKEN = slice(8, 24)  # of them, worker and base
PART = 1 << 20  # tells the random numbers of answers from those of gradients


class PulledView:
    """What one worker has of one shard, and the answer that it got last; all of it in one run of bytes."""

    def __init__(self, shape: MessageShape, seed: int, raw: Tensor | None = None) -> None:
        self.shape, self.seed, self._loops = shape, seed, Loops(shape.codec, shape.dtype)
        raw = torch.zeros(self.size(shape), dtype=torch.uint8) if raw is None else raw
        starts = list(accumulate(_sizes_of_pull(shape), initial=0))
        #: The worker's process, the batch of the push that was answered last, and the version that it made; -1: none.
        self.whose = raw[:24].view(torch.int64)
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
        return sum(_sizes_of_pull(shape))

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

    def note(self, worker: int, batch: int, base: int, version: int) -> None:
        """Take note of the push that was answered last, and the version that it has made."""
        self.whose.copy_(torch.tensor([worker, batch, version]))
        self._answer[TAKEN].view(torch.int64).copy_(torch.tensor([worker, base]))

    def answer_to(self, worker: int, batch: int, version: int, taken: tuple[int, int]) -> Sequence[memoryview] | None:
        """Return the answer to a push of a worker, labelled with a version; None where it has to be APART."""
        process, pushed, made = self.whose.tolist()
        if (process, made) != (worker, version):
            return None
        if pushed == batch:
            return (self.answer,)
        has: memoryview = self._has.numpy().data  # another worker has pushed the batch, and nothing was made since
        return _head(WHOLE, taken), has

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


def apart(values: memoryview, taken: tuple[int, int]) -> Sequence[memoryview]:
    """Return an answer with the whole values, of which the server takes no note."""
    return _head(APART, taken), values


def _head(kind: int, taken: tuple[int, int]) -> memoryview:
    return memoryview(bytes([kind]) + bytes(TAKEN.start - 1) + struct.pack("=qq", *taken) + bytes(HEAD - TAKEN.stop))


def taken_by(answer: memoryview) -> tuple[int, int]:
    """Return the worker whose gradient of the batch a shard has, and the version that it was computed from."""
    worker, base = struct.unpack("=qq", answer[TAKEN])
    return worker, base


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


def _sizes_of_pull(shape: MessageShape) -> list[int]:
    """Return the bytes of the parts of a memory."""
    spans, codec = shape.shard.parameters, shape.codec
    remembered = [torch.Size(codec.remembers(spans[n].shape) or (0,)).numel() for n in shape.coded]
    sizes = [up(count * shape.dtype.itemsize) for count in remembered]
    return [HEAD, up(_values(shape)), *sizes, HEAD + up(max(_values(shape), shape.most))]
