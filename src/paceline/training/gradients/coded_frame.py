"""What a worker exchanges and gets under a codec, in one run of bytes.

    | segments, if messages add up | its own message | the payload: the sum of all, as without a codec |

The payload is last, so that a rank which lacks a sum can be given the whole run by one that has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.algorithms.codecs import Codec
from paceline.training.gradients.encoder import GradientDecoder, GradientEncoder
from paceline.training.gradients.message import GradientMessage, MessageShape, up
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.fragments import Fragments
from paceline.training.parameters.layout import Layout


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
