"""`Link` over TCP: an offer sends a span, and its taker receives it into a buffer of its own.

    rank 0                                        rank 1
    ------                                        ------
    offer(1, span): as much as the socket takes;
                    the pump sends the rest ----> take(0, span): received straight into the buffer that it returns

`offer` never blocks, so ranks that all send first do not wait for each other. What it could not send at once is not
copied either: a span that was offered does not change before its taker is done with it, which a `Link` demands and
`algorithms.collectives.proof` shows.
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.errors import PeerLost, ProtocolError, RunFailed
from paceline.runtime.links import Span
from paceline.runtime.links.tcp.connection import Connection, leave
from paceline.runtime.links.tcp.frame import CALL_OFF, LEAVE, SPAN, Frame, Limits
from paceline.runtime.links.tcp.waiting import PeerWait, Pump, SocketWaiter
from paceline.runtime.links.waiting import Cancelled

if TYPE_CHECKING:
    from paceline.runtime.links import Link

ENDED = select.POLLRDHUP  # the other end sends nothing more
EMPTY = torch.empty(0)
SPANS = 4096  # of which views are kept
FAREWELL = 0.2  # seconds that the closing of a link may take which was cancelled: the next group waits


class _Incoming:
    """What one peer sends: where it is received, and what has arrived before it was asked for."""

    def __init__(self, rank: int, connection: Connection, dtype: torch.dtype) -> None:
        self.rank, self.connection, self._dtype = rank, connection, dtype
        #: Frames that were read while another peer was waited for, because this one has ended.
        self.early: deque[Frame] = deque()
        #: Whether it has said that it sends nothing more.
        self.left = False
        #: The span that is taken now.
        self._span: Span | None = None
        #: Buffers by their place in a row of takes without an offer between; each has held the longest span so far.
        self._longest: dict[int, Tensor] = {}
        #: The same buffers, as far as spans of these lengths fill them.
        self._buffers: dict[tuple[int, int], tuple[Tensor, memoryview]] = {}
        self._buffer: tuple[Tensor, memoryview] | None = None
        #: How many offers this rank had made at the last take, and how many takes there were since then.
        self._offers = self._row = -1
        connection.receive_into(self._place)

    def expect(self, span: Span, offers: int) -> None:
        """Prepare for a span. What was taken before stays valid until this rank has made another offer."""
        self._row = self._row + 1 if offers == self._offers else 0
        self._offers, self._span = offers, span
        key = self._row, span.stop - span.start
        if (buffer := self._buffers.get(key)) is None:
            if key[1] > (longest := self._longest.get(self._row, EMPTY)).numel():
                longest = self._longest[self._row] = torch.empty(key[1], dtype=self._dtype)
                self._buffers = {
                    span_key: views for span_key, views in self._buffers.items() if span_key[0] != self._row
                }
            if len(self._buffers) > SPANS:  # lengths that vary, as of coded gradients
                self._buffers.clear()
            buffer = self._buffers[key] = longest[: key[1]], raw(longest[: key[1]])
        self._buffer = buffer

    def taken(self, frame: Frame) -> Tensor:
        """Return the numbers of the frame that was waited for."""
        if frame.kind == LEAVE:
            self.left = True
            raise self.has_left()
        if frame.kind == CALL_OFF:
            raise Cancelled
        assert self._buffer is not None
        span, self._span = self._span, None
        tensor, place = self._buffer
        if frame.kind != SPAN or frame.ints != span or len(frame.body) != len(place):
            raise ProtocolError(
                f"{self.connection.name} sent frame {frame.kind} of {frame.ints} and {len(frame.body)} bytes, where "
                f"{span} of {len(place)} bytes was due: two ranks run different collectives"
            )
        if frame.body.obj is place.obj or not len(place):
            return tensor
        return torch.frombuffer(frame.body, dtype=self._dtype)

    def has_left(self) -> PeerLost:
        """The error of a take in vain."""
        return PeerLost(self.connection.name, "has left, while something was expected of it", left=True)

    def _place(self, kind: int, ints: tuple[int, ...], size: int) -> memoryview | None:
        if kind == SPAN and ints == self._span and self._buffer is not None and size == self._buffer[1].nbytes:
            return self._buffer[1]
        return None

    def read_to_the_end(self) -> None:
        """Read what a peer has sent that ended while another was waited for.

        Raises:
            Cancelled: it has called the link off.
            PeerLost: it has ended without a message.
        """
        while (frame := self.connection.next()) is not None:
            if frame.kind == CALL_OFF:
                raise Cancelled
            if frame.kind == LEAVE:
                self.left = True
                return
            self.early.append(frame)


class TcpLink:
    """A rank's end of a link over one connection to each other rank, as `meeting.meet` returns them."""

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, Connection],
        vectors: Sequence[Tensor],
        waiter: SocketWaiter,
        pump: Pump,
    ) -> None:
        """
        Args:
            rank: whose end this is.
            connections: one to each other rank, which are the link's from now on.
            vectors: this rank's own, `TURNS` of them.
            waiter: how this rank waits: its deadline, and whether the link was cancelled.
            pump: what sends while this rank computes.
        """
        self.rank, self.waited, self.vectors = rank, 0, vectors
        self._waiter, self._pump, self._connections = waiter, pump, dict(connections)
        self._sources = {peer: _Incoming(peer, end, vectors[0].dtype) for peer, end in connections.items()}
        self._by_descriptor = {source.connection.fileno(): source for source in self._sources.values()}
        self._pollers = {peer: self._poller(peer) for peer in connections}
        self._raws: dict[Span, memoryview] = {}
        self._offers = 0
        #: Whether it was cancelled, or a take has failed.
        self._over = False
        for connection in connections.values():
            # No span is larger. How much may wait is bounded by the collective: a rank offers what is asked of it.
            connection.limit(Limits(len(Span._fields), vectors[0].nbytes, sys.maxsize))
            pump.watch(connection)

    def offer(self, to: int, span: Span) -> None:
        """Send rank `to` a span of this rank's vector. Returns without waiting for it.

        Raises:
            PeerLost: the rank has ended, or has left the link.
            Cancelled: it has called the link off.
        """
        self._offers += 1
        if (view := self._raws.get(span)) is None:
            if len(self._raws) > SPANS:
                self._raws.clear()
            view = self._raws[span] = raw(self.vectors[span.turn][span.start : span.stop])
        try:
            self._connections[to].post(SPAN, span, (view,), copy=False)
        except PeerLost:
            self._over, source = True, self._sources[to]
            source.read_to_the_end()  # it may have said why
            if source.left:
                raise source.has_left() from None
            raise

    def take(self, peer: int, span: Span) -> Tensor:
        """Return what rank `peer` offered, valid until this rank offers something later.

        Raises:
            PeerLost: the peer has ended or is silent, or another rank has ended meanwhile.
            WaitedTooLong: the peer has not offered it before the deadline.
            Cancelled: the link was cancelled.
        """
        source = self._sources[peer]
        source.expect(span, self._offers)
        try:
            if source.early:
                return source.taken(source.early.popleft())
            if source.left:
                raise source.has_left()
            frame = source.connection.next()
            if frame is None:
                frame = self._wait(source)
            return source.taken(frame)
        except (RunFailed, Cancelled):
            self._over = True
            raise

    def abort(self) -> None:
        """End every wait on this link, on all ranks: each raises `Cancelled`."""
        self._over = True
        self._waiter.aborted.set()
        for connection in self._connections.values():
            with contextlib.suppress(PeerLost):
                connection.post(CALL_OFF)
                connection.finish()

    def close(self) -> None:
        """Leave the link. What is still to be sent arrives first, if that takes no longer than the deadline.

        A rank of which a take has failed calls the link off, since the others wait in vain for what it would have sent.
        """
        for connection in self._connections.values():
            self._pump.forget(connection)
        over = self._over or self._waiter.aborted.done
        seconds, last = (FAREWELL, CALL_OFF) if over else (self._waiter.deadline, LEAVE)
        leave(list(self._connections.values()), seconds, last)

    def _wait(self, source: _Incoming) -> Frame:
        """Wait for a frame of one peer, and meanwhile notice when another one ends."""
        wait, poller = PeerWait(self._waiter, source.connection), self._pollers[source.rank]
        while (frame := source.connection.next()) is None:
            for descriptor, _ in wait.poll(poller):
                other = self._by_descriptor.get(descriptor)
                if other is not None and other is not source:
                    other.read_to_the_end()
                    if other.left:
                        self._watch_no_longer(other)
        self.waited += wait.nanoseconds
        return frame

    def _poller(self, awaited: int) -> select.poll:
        poller = select.poll()
        poller.register(self._waiter.aborted, select.POLLIN)
        for peer, connection in self._connections.items():
            poller.register(connection, select.POLLIN if peer == awaited else ENDED)
        return poller

    def _watch_no_longer(self, source: _Incoming) -> None:
        for poller in self._pollers.values():
            poller.unregister(source.connection)


def raw(vector: Tensor) -> memoryview:
    """Return the bytes of a vector without gaps, of any dtype; they are its own memory."""
    if not vector.numel():
        return memoryview(b"")
    return vector.detach().view(torch.uint8).numpy().data


if TYPE_CHECKING:
    _: type[Link] = TcpLink
