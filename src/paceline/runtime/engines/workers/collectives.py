"""Collectives of workers: the tables by which their payloads are summed or mixed, with and without a codec.

Everything here is written against `links.Link`, so that it works over any transport.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.algorithms.collectives import SIT_OUT, Collective, Part, Step, lane_stride, segment_cuts, span_of
from paceline.algorithms.collectives.canonical import lanes_of
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.kernels.exchange import ITSELF, NO_WORKER
from paceline.runtime.links import TURNS, Link, Span
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.gradients.message import GradientMessage, Segments, segments_of
from paceline.training.gradients.payload import CodedFrame, GradientSum, Payload
from paceline.training.parameters.layout import Fragments
from paceline.training.parameters.replicas import weighted_sum

if TYPE_CHECKING:
    from paceline.training.parameters.layout import Layout


class Means(Protocol):
    """A collective that gives each worker the mean over all workers, or over its neighbours."""

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number; return (the mean, nanoseconds waited, bytes sent)."""


class Sums(Means, Protocol):
    """A collective that gives each worker the sum over all workers."""

    @abstractmethod
    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number; return (the sum, nanoseconds waited, bytes sent)."""

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        total, waited, sent = self.all_reduce(number, computed)
        return total.scaled(1.0 / total.weight), waited, sent  # every contribution has weight 1


class _Move(NamedTuple):
    """One step of a table over this worker's vectors."""

    to: int
    out: Span | None
    peer: int
    taken: Span
    #: Adds the received part to this worker's own, or replaces it; None where nothing is received.
    combine: Callable[[Tensor], object] | None


class Move(NamedTuple):
    """One step of a table over this worker's vectors, for generated code; see `kernels.exchange` for no worker."""

    to: int
    #: What has changed of the part that is offered, since it was offered before; empty if nothing has.
    first: int
    last: int
    peer: int
    start: int
    stop: int
    #: Whether what is taken is added to this worker's own; it replaces it otherwise.
    add: bool
    #: Where that begins.
    at: int


class Reduction:
    """Walks a collective's table over a link.

    The vectors of a link are used alternately. No worker writes for collective n + 2 before every worker has
    contributed to n + 1, and so has finished n. The caller numbers the collectives; reductions over several links may
    share the numbers if their table is the same. `segments` says how vectors of bytes are cut and added. `length` is
    how many numbers at the beginning of each vector take part; 0 for all.
    """

    def __init__(
        self, link: Link, collective: Collective, workers: int, segments: Segments | None = None, length: int = 0
    ) -> None:
        self.link, self._segments = link, segments
        steps = list(collective.steps(link.rank, workers))
        length, size = length or len(link.vectors[0]), link.vectors[0].element_size()
        self._cuts = segments.cuts if segments else segment_cuts(length, collective.segments(workers), size)
        self._steps, self.stride = steps, lane_stride(length, size)
        #: The vectors of one length that lie in each of the link's: several under a canonical sum.
        self.lanes = lanes_of(collective, workers)
        self._walks = [[self._move(step, turn) for step in steps if step != SIT_OUT] for turn in range(TURNS)]
        self.bytes = sum((stop - start) * size for start, stop in (self._between(step.send) for step in steps))

    def sum(self, number: int) -> int:
        """Add up every worker's vector of this number; return the nanoseconds that this worker waited."""
        link, before = self.link, self.link.waited
        offer, take, rank = link.offer, link.take, link.rank
        for to, out, peer, span, combine in self._walks[number % TURNS]:
            if out is not None:
                offer(to, out)
            if combine is not None:
                combine(take(peer, span) if peer != rank else link.vectors[span.turn][span.start : span.stop])
        return link.waited - before

    def table(self) -> list[Move]:
        """Return what `sum` does, step by step; the same over both vectors."""
        moves, offered = [], set[int]()
        for step in self._steps:
            send, receive = step.send, step.receive
            to, peer = send.other if send else NO_WORKER, receive.other if receive else NO_WORKER
            peer = ITSELF if peer == self.link.rank else peer
            written = step.written if receive else None
            sent = range(send.first, send.stop) if send else range(0)
            first, last = self._between(send)
            if offered.issuperset(sent):
                first = last
            offered.update(sent)
            offered.difference_update(range(written.first, written.stop) if written else ())
            moves.append(Move(to, first, last, peer, *self._between(receive), step.reduce, self._between(written)[0]))
        return moves

    def _between(self, part: Part | None) -> tuple[int, int]:
        """Return where a part begins and ends."""
        return span_of(part, self._cuts, self.stride)

    def _move(self, step: Step, turn: int) -> _Move:
        """Resolve a step of the table to spans of this worker's vectors."""

        def span(part: Part | None) -> Span:
            return Span(turn, *self._between(part))

        send, receive = step.send, step.receive
        combine: Callable[[Tensor], object] | None = None
        if receive is not None:
            start, stop = self._between(step.written)
            mine = self.link.vectors[turn][start:stop]
            combine = mine.add_ if step.reduce else mine.copy_
            if step.reduce and self._segments is not None:
                combine = self._segments.adder(self.link.vectors[turn], receive.first, receive.stop)
        return _Move(
            send.other if send else -1,
            span(send) if send else None,
            receive.other if receive else -1,
            span(receive),
            combine,
        )


def payloads_of(vectors: Sequence[Tensor], layout: Layout, lanes: int = 1, paces: int = 0) -> list[Payload]:
    """Return the payloads at the beginning of a rank's own vectors, whose numbers become zero."""
    return [Payload(layout, vector[: Payload.room(layout, lanes, paces)], lanes, paces) for vector in vectors]


def reduction_of(link: Link, collective: Collective, workers: int, payloads: Sequence[Payload]) -> PayloadReduction:
    """Return the reduction of these payloads at the beginning of the link's vectors."""
    return PayloadReduction(Reduction(link, collective, workers, length=len(payloads[0].flat)), payloads)


class PayloadReduction(Sums):
    """Adds gradients up, or averages replicas, as payloads over the vectors of a reduction's link."""

    #: Of each vector, where they are mixed; 0 where they are summed.
    share = 0.0

    def __init__(self, reduction: Reduction, payloads: Sequence[Payload]) -> None:
        self.reduction, self.payloads, self.bytes = reduction, payloads, reduction.bytes
        self.link, self.table = reduction.link, reduction.table
        self.stride, self.lanes = reduction.stride, reduction.lanes

    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number; return (the sum over all workers, nanoseconds waited, bytes sent)."""
        payload = self.payloads[number % TURNS]
        payload.write(computed)
        waited = self.reduction.sum(number)
        return payload.read(computed.samples), waited, self.bytes


class FragmentSums(Sums):
    """`Sums` of fragments, one after another: the collective of number k is that of fragment k mod F."""

    def __init__(self, each: Sequence[Sums]) -> None:
        self.each = each

    @staticmethod
    def of(each: Sequence[Sums]) -> Sums:
        """Return the sums of these fragments; of a single one, its own."""
        return each[0] if len(each) == 1 else FragmentSums(each)

    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number; return (the sum over all workers, nanoseconds waited, bytes sent)."""
        return self.each[number % len(self.each)].all_reduce(number, computed)


class NeighbourMixing:
    """Mixes a worker's payload with its neighbours' into a vector of its own, since they read the payload meanwhile."""

    def __init__(
        self, link: Link, graph: Neighbours, workers: int, layout: Layout, payloads: Sequence[Payload]
    ) -> None:
        self.link, self.weights, self.payloads = link, graph.weights(link.rank, workers), payloads
        self.mixture = torch.zeros(Payload.length(layout), dtype=layout.dtype)
        self.mixed = Payload(layout, self.mixture)
        self.others, self.share = [other for other, _ in self.weights[1:]], self.weights[0][1]
        self.stride, self.lanes = len(self.mixture), 1
        self.bytes = len(self.others) * self.mixture.nbytes
        self._whole = [Span(turn, 0, len(self.mixture)) for turn in range(TURNS)]
        #: The number of the collective that this worker's contribution was offered for last.
        self._offered = -1

    def offer(self, number: int, computed: GradientSum) -> None:
        """Let the neighbours take what this worker contributes to the collective of this number, without a wait.

        The vector of this number is free: to come here, this worker has taken what each neighbour offered after it had
        read the vector last.
        """
        self.payloads[number % TURNS].write(computed)
        for other in self.others:
            self.link.offer(other, self._whole[number % TURNS])
        self._offered = number

    def mean(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number; return (the mixture, nanoseconds waited, bytes sent)."""
        link, turn, before = self.link, number % TURNS, self.link.waited
        if self._offered != number:
            self.offer(number, computed)
        vectors = {other: link.take(other, self._whole[turn]) for other in self.others}
        weighted_sum({link.rank: link.vectors[turn], **vectors}, self.weights, self.mixture)
        return self.mixed.read(computed.samples), link.waited - before, self.bytes

    def table(self) -> list[Move]:
        """Return with whom the whole vector is exchanged, in the order in which theirs are added."""
        return [Move(other, 0, self.stride, other, 0, self.stride, add=True, at=0) for other in self.others]


# Sums of gradients and means of steps under a codec: messages are summed by the plan's table, or gathered and summed.
# worker                                            its peers
# ──────                                            ─────────
# 1 write the message of gradient and owed
# 2 messages add:    walk the table  ◀───────────▶  the same table
#   they do not: send the message    ◀───────────▶  theirs
# 3 decode the sum, or decode all and sum them in the order of the ranks: the same bits for all
# 4 what the message left out is owed


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
