"""The vector that synchronous workers add up.

    | gradients, as in the layout | moving buffers | which parameters got a gradient | loss | weight |

Every number in it is weighted by the samples it speaks for, so a plain sum is the sample-weighted mean of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.algorithms.codecs import Codec
from paceline.algorithms.collectives import lane_stride
from paceline.training.gradients.encoder import GradientDecoder, GradientEncoder
from paceline.training.gradients.message import GradientMessage, MessageShape, up
from paceline.training.parameters.layout import Fragments, Layout
from paceline.training.parameters.rows import numbers


@dataclass
class GradientSum:
    """The sums of a worker's chunks of an update."""

    gradients: list[Tensor | None]
    buffers: list[Tensor]
    loss: float
    weight: float
    samples: int
    #: The number of the first chunk, which tells what this worker draws at random from what others do.
    part: int = 0
    #: Under a canonical sum: the vectors of the subtrees that this worker has added up; the gradients are the first's.
    partial_sums: Sequence[Tensor] = ()

    @property
    def mean(self) -> float:
        """The mean loss; NaN where there were no samples."""
        return self.loss / self.weight if self.weight else math.nan

    def scaled(self, factor: float) -> GradientSum:
        """Return the sums times a factor, in new memory: another worker may still read that of a payload."""
        gradients = [None if g is None else g * factor for g in self.gradients]
        buffers = [b * factor for b in self.buffers]
        return GradientSum(gradients, buffers, self.loss * factor, self.weight * factor, self.samples, self.part)

    def add(self, other: GradientSum) -> None:
        """Add the sums of further chunks, as a backward pass over them would have."""
        pairs = zip(self.gradients, other.gradients, strict=True)
        self.gradients = [g if more is None else more.clone() if g is None else g.add_(more) for g, more in pairs]
        if self.buffers:
            torch._foreach_add_(self.buffers, other.buffers)
        self.loss, self.weight = self.loss + other.loss, self.weight + other.weight
        self.samples += other.samples

    def finite(self) -> bool:
        """Return whether the loss and all gradients are finite."""
        present = [numbers(g) for g in self.partial_sums or self.gradients if g is not None]
        return math.isfinite(self.loss) and all(bool(g.isfinite().all()) for g in present)

    def left_out(self) -> GradientSum:
        """Return the same without weight, which adds nothing to any sum."""
        nothing: list[Tensor | None] = [None] * len(self.gradients)
        return GradientSum(nothing, [torch.zeros_like(b) for b in self.buffers], 0.0, 0.0, self.samples, self.part)


class Payload:
    """A view of the vector by its parts."""

    def __init__(self, layout: Layout, vector: Tensor, lanes: int = 1, paces: int = 0) -> None:
        """The first of the vector's lanes is the payload; the others have partial sums, under a canonical sum.

        `paces` are numbers at the end of each: the seconds that each worker takes for a chunk.
        """
        (shard,) = layout.shards
        length = Payload.length(layout) + paces
        stride = lane_stride(length, vector.element_size())
        self.vector = vector
        self.lanes = [vector[lane * stride : lane * stride + length] for lane in range(lanes)]
        self.flat = flat = self.lanes[0]
        self.gradients = shard.parameter_views(flat)
        self.buffers = shard.buffer_views(flat)
        self.tail, self.paces = flat[shard.length : length - paces], flat[length - paces :]
        flat[: shard.length].zero_()

    @staticmethod
    def length(layout: Layout) -> int:
        (shard,) = layout.shards
        return shard.length + len(shard.parameters) + 2

    @staticmethod
    def room(layout: Layout, lanes: int, paces: int = 0) -> int:
        """Return the numbers of a vector of so many lanes."""
        length = Payload.length(layout) + paces
        return lane_stride(length, layout.bytes_per_number) * (lanes - 1) + length

    def write(self, computed: GradientSum) -> None:
        """Write what this worker computed; zeros where it had no samples, or they were left out."""
        if computed.partial_sums:
            for lane, vector in zip(self.lanes, computed.partial_sums, strict=False):
                lane.copy_(vector)
            return
        if not computed.weight:
            # The others wait for this worker's vector all the same, so it takes part with a sum of nothing.
            self.flat.zero_()
            return
        present = [0.0 if g is None else 1.0 for g in computed.gradients]  # `None in` would compare tensors
        if present and all(present):
            # One call for all tensors: in a small network a call for each takes longer than the copying.
            torch._foreach_copy_(self.gradients, computed.gradients)  # type: ignore[arg-type]
        else:
            for view, gradient in zip(self.gradients, computed.gradients, strict=True):
                view.zero_() if gradient is None else view.copy_(gradient)
        if self.buffers:
            torch._foreach_copy_(self.buffers, computed.buffers)
        self.tail.copy_(torch.tensor([*present, computed.loss, computed.weight], dtype=self.flat.dtype))

    def read(self, samples: int) -> GradientSum:
        """Return the sums of the whole batch, after the all-reduce."""
        *present, loss, weight = self.tail.tolist()
        # Views, without a copy: the vector is written again only in the collective after the next.
        gradients: list[Tensor | None] = list(self.gradients)
        # Where no worker has a gradient of a parameter it gets none, not zeros: weight decay or momentum would move it.
        if not all(present):
            gradients = [g if is_present else None for g, is_present in zip(gradients, present, strict=True)]
        return GradientSum(gradients, self.buffers, loss, weight, samples)


# --- What a worker exchanges and gets under a codec, in one run of bytes ----------------------------------------------
#     | segments, if messages add up | its own message | the payload: the sum of all, as without a codec |
#
# The payload is last, so that a rank which lacks a sum can be given the whole run by one that has it.


class CodedFrame:
    """Views of a run of bytes as a frame."""

    def __init__(self, shape: MessageShape, layout: Layout, raw: Tensor, seed: int, shard: int = 0) -> None:
        """`shard` is the encoder's number of what is exchanged: a fragment, or all."""
        self.shape, self.raw, self.shard = shape, raw, shard
        self.begin = shape.fixed if shape.codec.adds else 0
        #: Where the message begins and, without its words, ends.
        self.message = GradientMessage(shape, raw[self.begin : self.begin + shape.most])
        start = up(self.begin + shape.most)
        numbers = raw[start : start + Payload.length(layout) * layout.bytes_per_number]
        self.payload = Payload(layout, numbers.view(layout.dtype))
        self._decoder = GradientDecoder(shape, seed)
        self._total = torch.zeros_like(self.message.flat)

    @staticmethod
    def size(shape: MessageShape, layout: Layout) -> int:
        """Return the bytes of a frame."""
        begin = shape.fixed if shape.codec.adds else 0
        return up(begin + shape.most) + up(Payload.length(layout) * layout.bytes_per_number)

    @staticmethod
    def largest(codec: Codec, fragments: Fragments) -> int:
        """Return the bytes of the largest frame of these fragments."""
        return max(CodedFrame.size(MessageShape(codec, f.shards[0], f.dtype), f) for f in fragments.each)

    def write(self, encoder: GradientEncoder, computed: GradientSum, update: int) -> None:
        """Write what a worker computed as its message."""
        gradients, weight = computed.gradients, computed.weight
        if not weight:  # the others wait for its message all the same
            gradients = [None] * len(gradients)
            self.message.flat.zero_()
        buffers = computed.buffers if weight else []
        loss = computed.loss if weight else 0.0
        encoder.write(self.shard, gradients, buffers, (loss, weight), self.message, update, computed.part, True)

    def add_up(self, messages: Sequence[GradientMessage], update: int) -> None:
        """Write the sum of messages into the payload, in their order."""
        total = self._total.copy_(messages[0].flat)
        for number, message in enumerate(messages):
            self._decoder.add(message, self.payload.gradients, number == 0, update)
            if number:
                total.add_(message.flat)
        self._spread(total)

    def _spread(self, total: Tensor) -> None:
        """Write the numbers that stay dense into the payload."""
        payload, start = self.payload, 0
        for view in (*(payload.gradients[n] for n in self.shape.dense), *payload.buffers):
            view.copy_(total[start : start + view.numel()].view(view.shape))
            start += view.numel()
        payload.tail.copy_(total[start:])
        flags = payload.tail[: len(payload.gradients)]
        for number in flags.isnan().nonzero().view(-1).tolist():
            payload.gradients[number].fill_(float("nan"))
