"""Sums of gradients and means of steps under a codec: messages are summed by the plan's table, or gathered and summed.

worker                                            its peers
──────                                            ─────────
1 write the message of gradient and owed
2 messages add:    walk the table  ◀───────────▶  the same table
  they do not: send the message    ◀───────────▶  theirs
3 decode the sum, or decode all and sum them in the order of the ranks: the same bits for all
4 what the message left out is owed
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.algorithms.collectives import Collective
from paceline.runtime.engines.workers.collectives import Reduction, Sums
from paceline.runtime.links import TURNS, Link, Span
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.gradients.message import GradientMessage
from paceline.training.gradients.payload import CodedFrame, GradientSum
from paceline.training.gradients.segments import Segments, segments_of
from paceline.training.parameters.layout import Fragments


def frames_of(vectors: Sequence[Tensor], encoder: GradientEncoder, fragments: Fragments) -> list[list[CodedFrame]]:
    """Return the frames of each fragment over a rank's own vectors of bytes."""
    return [
        [CodedFrame(shape, layout, vector, encoder.seed, number) for vector in vectors]
        for number, (shape, layout) in enumerate(zip(encoder.shapes, fragments.each, strict=True))
    ]


class CodedSums(Sums):
    """`Sums` of messages over the vectors of a link."""

    def __init__(
        self, link: Link, collective: Collective, ranks: int, frames: Sequence[CodedFrame], encoder: GradientEncoder
    ) -> None:
        self.link, self.ranks, self.frames, self.encoder = link, ranks, frames, encoder
        #: The parts in which messages are summed, each by a walk of its own; none where they are gathered.
        self._parts: list[tuple[Segments, Reduction]] = []
        if encoder.codec.adds:
            segments = segments_of(frames[0].shape, collective.segments(ranks))
            self._parts = [(part, Reduction(link, collective, ranks, part)) for part in segments]
        #: The messages of the other ranks, by the memory that they were received in.
        self._known: dict[tuple[int, int, int], GradientMessage] = {}

    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number; return (the sum over all workers, nanoseconds waited, bytes sent)."""
        frame, before = self.frames[number % TURNS], self.link.waited
        frame.write(self.encoder, computed, number)
        if self._parts:
            self._summed(frame, number)
            messages, sent = [frame.message], sum(table.bytes for _, table in self._parts)
        else:
            messages = self._gathered(frame, number % TURNS)
            sent = (self.ranks - 1) * frame.message.bytes
        frame.add_up(messages, number)
        self.encoder.finalize()
        return frame.payload.read(computed.samples), self.link.waited - before, sent

    def _summed(self, frame: CodedFrame, number: int) -> None:
        """Sum the messages; where that takes two parts, the second is written from the sum of the first."""
        for place, (segments, table) in enumerate(self._parts):
            if place:
                self.encoder.finish(frame.shard, frame.message)
            segments.scatter(frame.message, frame.raw)
            table.sum(number)
            segments.gather(frame.raw, frame.message)
        if self.encoder.codec.in_two:
            self.encoder.remember(frame.shard, frame.message)

    def _gathered(self, frame: CodedFrame, turn: int) -> list[GradientMessage]:
        """Send the own message to all, then take theirs; in the order of ranks."""
        link, shape = self.link, frame.shape
        others = [(link.rank + away) % self.ranks for away in range(1, self.ranks)]
        fixed_span = Span(turn, 0, shape.fixed)
        spans = [fixed_span, *_words(turn, shape.fixed, frame.message.sent_words)]
        for other in others:
            for span in spans:
                link.offer(other, span)
        messages = {link.rank: frame.message}
        for other in reversed(others):
            fixed = link.take(other, fixed_span)
            if not shape.words:
                messages[other] = self._message(other, turn, fixed, shape.fixed)
                continue
            raw = torch.empty(shape.most, dtype=torch.uint8)
            raw[: shape.fixed] = fixed
            message = GradientMessage(shape, raw)
            message.check_words(4 * message.sent_words)
            for span in _words(turn, shape.fixed, message.sent_words):
                raw[span.start : span.stop] = link.take(other, span)
            messages[other] = message
        for other in others:
            messages[other].check()
        return [messages[rank] for rank in range(self.ranks)]

    def _message(self, other: int, turn: int, raw: Tensor, size: int) -> GradientMessage:
        """Return the message in this memory; its views are made once."""
        key = other, turn, raw.data_ptr()
        if (message := self._known.get(key)) is None:
            message = self._known[key] = GradientMessage(self.frames[0].shape, raw[:size])
        return message


def _words(turn: int, start: int, words: int) -> list[Span]:
    """Return the span of the words of a message, if it has any."""
    return [Span(turn, start, start + 4 * words)] if words else []
