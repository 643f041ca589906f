"""The message of a coded gradient: where everything lies in it, and its segments under a collective's table.

    | fields of coded tensors | dense numbers: other tensors, moving buffers, flags, loss, weight | words |

Tensors with less than two dimensions, such as biases, stay dense, and so does every tensor that a codec would not make
smaller. Flags say which parameters got a gradient: 1 or 0, or NaN where the gradient was not finite, so that no codec
hides that. `words` are there only if the codec is variable: the last fields of all tensors, one after the other, each
as long as its first field says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from paceline.algorithms.codecs import OWN, Codec, Field, Fields, rows_and_columns
from paceline.algorithms.collectives import segment_cuts
from paceline.errors import FrameError
from paceline.training.parameters.layout import ALIGN, ShardLayout

TAIL = 2  # numbers after the flags: loss and weight


def up(size: int) -> int:
    """Round a number of bytes up to where a tensor may begin."""
    return -(-size // ALIGN) * ALIGN


@dataclass(frozen=True)
class MessageShape:
    """The sizes of all messages of one shard."""

    codec: Codec
    shard: ShardLayout
    dtype: torch.dtype

    @cached_property
    def coded(self) -> tuple[int, ...]:
        """The numbers of the parameters that the codec writes."""
        return tuple(n for n, span in enumerate(self.shard.parameters) if self._pays(span.shape))

    @cached_property
    def dense(self) -> tuple[int, ...]:
        """The numbers of the parameters that stay dense."""
        return tuple(n for n in range(len(self.shard.parameters)) if n not in self.coded)

    @cached_property
    def fields(self) -> tuple[tuple[Field, ...], ...]:
        """The fields of each coded parameter, without those of variable length."""
        coded_fields = (self.codec.fields(self.shard.parameters[n].shape) for n in self.coded)
        return tuple(fields[:-1] if self.codec.variable else fields for fields in coded_fields)

    @cached_property
    def field_bytes(self) -> int:
        """The bytes of all fields of fixed length. Those of codecs that add up lie without gaps."""
        total = sum(self.size(field) for fields in self.fields for field in fields)
        return total + up(self.first_bytes) - self.first_bytes

    @cached_property
    def first_bytes(self) -> int:
        """Return the bytes of the first part of a message that is summed in two; the next part is aligned after it."""
        return sum(self.size(fields[0]) for fields in self.fields) if self.codec.in_two else 0

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """Where the fields of each coded parameter begin; the first fields of all come first if it is summed in two."""
        starts = [0, up(self.first_bytes)]
        offsets = []
        for fields in self.fields:
            mine = []
            for number, field in enumerate(fields):
                part = number if self.codec.in_two else 0
                mine.append(starts[part])
                starts[part] += self.size(field)
            offsets.append(tuple(mine))
        return tuple(offsets)

    @cached_property
    def dense_numbers(self) -> int:
        """The numbers that stay dense."""
        spans = [*(self.shard.parameters[n] for n in self.dense), *self.shard.buffers]
        return sum(span.size for span in spans) + len(self.shard.parameters) + TAIL

    @property
    def fixed(self) -> int:
        """The bytes of a message without words."""
        return up(self.field_bytes) + up(self.dense_numbers * self.dtype.itemsize)

    @property
    def words(self) -> int:
        """The most words of a message."""
        return sum(self.shard.parameters[n].size for n in self.coded) if self.codec.variable else 0

    @property
    def most(self) -> int:
        """The most bytes of a message."""
        return self.fixed + up(4 * self.words)

    def size(self, field: Field) -> int:
        """Return the bytes of a field, with a gap after it where the next one would not begin at a multiple of 8."""
        exact = field.length * self.type(field).itemsize
        return exact if self.codec.adds else -(-exact // 8) * 8

    def type(self, field: Field) -> torch.dtype:
        dtype: torch.dtype = self.dtype if field.dtype == OWN else getattr(torch, field.dtype)
        return dtype

    def _pays(self, shape: Sequence[int]) -> bool:
        if len(shape) < 2 or not prod(shape):
            return False
        fields = self.codec.fields(shape)
        return sum(map(self.size, fields[:-1] if self.codec.variable else fields)) < prod(shape) * self.dtype.itemsize


class GradientMessage:
    """Views of a run of bytes as a message."""

    def __init__(self, shape: MessageShape, raw: Tensor) -> None:
        self.shape, self.raw = shape, raw
        self.fields = [
            [
                raw[at : at + f.length * shape.type(f).itemsize].view(shape.type(f))
                for f, at in zip(fields, places, strict=True)
            ]
            for fields, places in zip(shape.fields, shape.places, strict=True)
        ]
        flat = raw[up(shape.field_bytes) :][: shape.dense_numbers * shape.dtype.itemsize].view(shape.dtype)
        spans = [*(shape.shard.parameters[n] for n in shape.dense), *shape.shard.buffers]
        views, start = list[Tensor](), 0
        for span in spans:
            views.append(flat[start : start + span.size].view(span.shape))
            start += span.size
        #: The numbers that stay dense: parameters, moving buffers, flags, and loss and weight.
        self.flat = flat
        self.dense, self.buffers = views[: len(shape.dense)], views[len(shape.dense) :]
        self.flags, self.tail = flat[-len(shape.shard.parameters) - TAIL : -TAIL], flat[-TAIL:]
        self.words = raw[shape.fixed :].view(torch.int32) if shape.words else raw[:0].view(torch.int32)

    def all_fields(self) -> list[Fields]:
        """Return the fields of each coded parameter with its own words, as far as the message goes."""
        if not self.shape.codec.variable:
            return list(self.fields)
        coded_fields, start = list[Fields](), 0
        for fields in self.fields:
            stop = start + int(fields[0])
            coded_fields.append([*fields, self.words[start:stop]])
            start = stop
        return coded_fields

    @property
    def bytes(self) -> int:
        """The bytes of this message."""
        return self.shape.fixed + 4 * self.sent_words

    @property
    def sent_words(self) -> int:
        return sum(int(fields[0]) for fields in self.fields) if self.shape.codec.variable else 0

    def check_words(self, size: int) -> None:
        """Raise FrameError unless the counts of words are those of so many bytes after the fixed part."""
        limits = [self.shape.shard.parameters[n].size for n in self.shape.coded]
        counts = [int(fields[0]) for fields in self.fields] if self.shape.codec.variable else []
        if (
            any(not 0 <= count <= limit for count, limit in zip(counts, limits, strict=False))
            or 4 * sum(counts) != size
        ):
            raise FrameError("body", f"a coded gradient of {size} bytes of words announces {counts}")

    def check(self) -> None:
        """Raise FrameError if a codec cannot read the message."""
        codec, spans = self.shape.codec, self.shape.shard.parameters
        for number, fields in zip(self.shape.coded, self.all_fields(), strict=True):
            if (why := codec.refusal(fields, spans[number].shape)) is not None:
                raise FrameError("body", f"the coded gradient of {spans[number].name} cannot be read: {why}")


def matrix(tensor: Tensor) -> Tensor:
    """Return a tensor as the matrix that codecs work on."""
    return tensor.view(rows_and_columns(tensor.shape))


# Messages that add up, cut into the segments of a collective's table.
#
#     message     | coded numbers ---------------- | dense numbers ------------ |
#     segments    | coded 0 | dense 0 | coded 1 | dense 1 | ...
#
# A segment has a part of the coded and a part of the dense numbers, each in its own dtype, so that a step of the table
# carries and adds both at once.


class Segments:
    """The segments of messages of one shape; `count` is how many the table wants.

    A message that is summed in two has two kinds of them: `part` 0 has the first fields, and `part` 1 all the rest,
    which lie behind them in the vector.
    """

    def __init__(self, shape: MessageShape, count: int, part: int = 0) -> None:
        fields = [field for fields in shape.fields for field in fields]
        coded = shape.type(fields[0]) if fields else shape.dtype
        ends = (
            [0, shape.first_bytes] if shape.codec.in_two and part == 0 else [up(shape.first_bytes), shape.field_bytes]
        )
        #: The bytes of the coded numbers in a message, and whether the dense ones belong to these segments.
        self._coded, self._dense = slice(*ends), not shape.codec.in_two or part == 1
        blocks = [(coded, (ends[1] - ends[0]) // coded.itemsize)]
        blocks += [(shape.dtype, shape.dense_numbers)] if self._dense else []
        #: For each segment and block: where it lies in the block's numbers, and its bytes in the segmented vector.
        self._parts: list[list[tuple[torch.dtype, int, int, int]]] = []
        #: Where the segments begin, in bytes, and where the last one ends.
        start = ends[0]
        self.cuts = [start]
        spans = [list(pairwise(segment_cuts(numbers, count, dtype.itemsize))) for dtype, numbers in blocks]
        for segment in range(count):
            self._parts.append([])
            for (dtype, _), block in zip(blocks, spans, strict=True):
                first, stop = block[segment]
                self._parts[-1].append((dtype, first, stop, start))
                start += up((stop - first) * dtype.itemsize)
            self.cuts.append(start)

    def scatter(self, message: GradientMessage, flat: Tensor) -> None:
        """Copy the numbers of a message into a segmented vector."""
        for block, place in self._pairs(message, flat):
            place.copy_(block)

    def gather(self, flat: Tensor, message: GradientMessage) -> None:
        """Copy the numbers of a segmented vector into a message."""
        for block, place in self._pairs(message, flat):
            block.copy_(place)

    def adder(self, flat: Tensor, first: int, stop: int) -> Callable[[Tensor], None]:
        """Return what adds segments that were received to those of a vector, where these begin at `first`."""
        begin, pairs = self.cuts[first], list[tuple[Tensor, torch.dtype, int]]()
        for parts in self._parts[first:stop]:
            for dtype, low, high, start in parts:
                size = (high - low) * dtype.itemsize
                pairs.append((flat[start : start + size].view(dtype), dtype, start - begin))

        def add(raw: Tensor) -> None:
            for mine, dtype, start in pairs:
                mine.add_(raw[start : start + mine.numel() * dtype.itemsize].view(dtype))

        return add

    def _pairs(self, message: GradientMessage, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The parts of a message with their places in a segmented vector."""
        blocks = [message.raw[self._coded], *([message.flat] if self._dense else [])]
        pairs = []
        for parts in self._parts:
            for block, (dtype, low, high, start) in zip(blocks, parts, strict=True):
                place = flat[start : start + (high - low) * dtype.itemsize].view(dtype)
                pairs.append((block.view(dtype)[low:high], place))
        return pairs


def segments_of(shape: MessageShape, count: int) -> list[Segments]:
    """Return the segments of each part in which messages are summed."""
    return [Segments(shape, count, part) for part in range(2 if shape.codec.in_two else 1)]
