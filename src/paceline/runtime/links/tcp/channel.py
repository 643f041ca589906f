"""`MessageChannel` over TCP: messages of tensors to a neighbour, which confirms each that it has taken.

A message is one frame: its integers say how many tensors follow and what each is; its body is their bytes, each from a
cache line on. As in a mailbox, `slots` messages may be under way before the sender has to wait.
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from paceline.errors import FrameError, PeerLost
from paceline.runtime.links.memory import LINE, lines
from paceline.runtime.links.shared_memory import DIMENSIONS, NOTHING, TYPES
from paceline.runtime.links.tcp.connection import Buffer, Connection, leave
from paceline.runtime.links.tcp.frame import LEAVE, MESSAGE, TAKEN, Frame
from paceline.runtime.links.tcp.link import raw
from paceline.runtime.links.tcp.waiting import PeerWait, Pump, SocketWaiter

if TYPE_CHECKING:
    from paceline.runtime.links import MessageChannel

GAP = memoryview(bytes(LINE))
LARGEST = 1 << 40  # size or stride of a dimension


class TcpChannel:
    """An end of a channel. The sending stage calls `put`, the receiving one `take`."""

    def __init__(self, connection: Connection, slots: int, waiter: SocketWaiter, pump: Pump) -> None:
        """
        Args:
            connection: to the neighbour; used by this channel alone, one way.
            slots: messages that may be under way.
            waiter: how this stage waits.
            pump: what sends while this stage computes.
        """
        self.waited = 0
        self._connection, self._slots, self._pump = connection, slots, pump
        self._line, self._waiter = BlockingConnection(connection, waiter), waiter
        #: Messages that were sent and are not confirmed.
        self._under_way = 0
        #: A message that has arrived and is not taken.
        self._next: Frame | None = None
        connection.limit(connection.limits._replace(queue=sys.maxsize))  # the slots bound it
        pump.watch(connection)

    @property
    def full(self) -> bool:
        """Whether `put` would wait for the receiver."""
        while self._under_way >= self._slots and (frame := self._connection.next()) is not None:
            self._confirmed(frame)
        return self._under_way >= self._slots

    @property
    def empty(self) -> bool:
        """Whether `take` would wait for the sender."""
        if self._next is None:
            self._next = self._connection.next()
        return self._next is None

    def put(self, message: Sequence[Tensor | None]) -> int:
        """Send tensors, which may be changed afterwards, and return their bytes. Waits while the channel is full."""
        while self.full:
            self._confirmed(self._receive())
        ints: list[int] = [len(message)]
        bodies: list[memoryview] = []
        for tensor in message:
            if tensor is None:
                ints.append(NOTHING)
                continue
            numbers = _dense(tensor)
            ints += [TYPES.index(numbers.dtype), numbers.dim(), *numbers.shape, *numbers.stride()]
            flat = numbers.as_strided((numbers.numel(),), (1,))
            bodies += [raw(flat), GAP[: lines(flat.nbytes) - flat.nbytes]]
        self._connection.post(MESSAGE, ints, bodies)
        self._under_way += 1
        return sum(map(len, bodies))

    def take(self) -> list[Tensor | None]:
        """Return the next message, which is the receiver's to keep. Waits while the channel is empty."""
        frame = self._receive() if self.empty else self._next
        self._next = None
        assert frame is not None
        _expect(self._connection, frame, MESSAGE)
        message = [None if entry is None else entry.tensor(frame.body) for entry in _entries(frame)]
        with contextlib.suppress(PeerLost):  # what it has sent before it ended is taken nevertheless
            self._connection.post(TAKEN)
        return message

    def close(self) -> None:
        """Leave the channel, after what was sent has arrived or the deadline has passed."""
        self._pump.forget(self._connection)
        leave([self._connection], self._waiter.deadline)

    def _receive(self) -> Frame:
        before = self._line.waited
        frame = self._line.receive()
        self.waited += self._line.waited - before
        return frame

    def _confirmed(self, frame: Frame) -> None:
        _expect(self._connection, frame, TAKEN)
        self._under_way -= 1


class _Entry(NamedTuple):
    """A tensor as the integers of a message describe it; what does not fit was refused."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int  # in the body
    numbers: int

    def tensor(self, body: memoryview) -> Tensor:
        if not self.numbers:
            return torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
        flat = torch.frombuffer(body, dtype=self.dtype, offset=self.start, count=self.numbers)
        return flat.as_strided(self.shape, self.strides)


def _entries(frame: Frame) -> Iterator[_Entry | None]:
    """Read a message's integers, each of which is checked."""
    ints, start = iter(frame.ints), 0
    (count,) = _read(ints, 1)
    for _ in range(count):
        (kind,) = _read(ints, 1)
        if kind == NOTHING:
            yield None
            continue
        (dimensions,) = _read(ints, 1)
        if not 0 <= kind < len(TYPES) or not 0 <= dimensions <= DIMENSIONS:
            raise FrameError("integers", f"a message names dtype {kind} and {dimensions} dimensions")
        shape, strides = _read(ints, dimensions), _read(ints, dimensions)
        entry = _Entry(TYPES[kind], shape, strides, start, prod(shape))
        _check(entry, len(frame.body))
        yield entry
        start += lines(entry.numbers * entry.dtype.itemsize)
    if start != len(frame.body) or next(ints, None) is not None:
        raise FrameError("body", f"a message of {len(frame.body)} bytes has tensors of {start} bytes")


def _read(ints: Iterator[int], count: int) -> tuple[int, ...]:
    if len(got := tuple(islice(ints, count))) < count:
        raise FrameError("integers", "a message has fewer integers than its tensors need")
    return got


def _check(entry: _Entry, size: int) -> None:
    """Refuse a tensor that does not lie in the message."""
    reach = 1 + sum((n - 1) * stride for n, stride in zip(entry.shape, entry.strides, strict=True))
    if not all(0 <= number < LARGEST for number in (*entry.shape, *entry.strides)):
        raise FrameError("integers", f"a message has a tensor of shape {entry.shape} and strides {entry.strides}")
    if entry.numbers and (reach > entry.numbers or entry.start + entry.numbers * entry.dtype.itemsize > size):
        raise FrameError("body", f"a message of {size} bytes has a tensor of shape {entry.shape} beyond its end")


def _dense(tensor: Tensor) -> Tensor:
    """Return the tensor itself if its numbers lie without gaps, in whatever order; else a copy."""
    reach = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach() if not tensor.numel() or reach == tensor.numel() else tensor.detach().contiguous()


def _expect(connection: Connection, frame: Frame, kind: int) -> None:
    if frame.kind == LEAVE:
        raise PeerLost(connection.name, "has left, while something was expected of it", left=True)
    if frame.kind != kind:
        raise FrameError("kind", f"{connection.name} sent frame {frame.kind} where {kind} was due")


if TYPE_CHECKING:
    _: type[MessageChannel] = TcpChannel


# A connection for a thread that waits: requests and answers, with a deadline and a way to cancel.

BOTH = select.POLLIN | select.POLLOUT


class BlockingConnection:
    """A connection to one peer, used by one thread.

        connection.send(PUSH, (batch,), [gradient])      returns when all was handed to the kernel
        answer = connection.receive()

    Both raise `WaitedTooLong` after the deadline, `Cancelled` when cancelled, and `PeerLost` when the peer has ended
    or says nothing. After any of these the connection is closed: half a frame may have been sent.
    """

    def __init__(self, connection: Connection, waiter: SocketWaiter) -> None:
        self.connection, self.waiter = connection, waiter
        #: Nanoseconds that were waited.
        self.waited = 0
        #: A frame that arrived while one was sent: two ends that both send first must not wait for each other.
        self._early: Frame | None = None
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)
        self._poller.register(waiter.aborted, select.POLLIN)

    def send(self, kind: int, ints: Sequence[int] = (), bodies: Sequence[Buffer] = ()) -> None:
        """Send a frame; the buffers may be changed afterwards."""
        try:
            self.connection.post(kind, ints, bodies, copy=False)
            if self.connection.wants_write:
                self._until_sent()
        except PeerLost:
            self._listen_to_the_end()
            raise

    def receive(self) -> Frame:
        """Return the next frame."""
        frame, self._early = self._early, None
        if frame is None:
            frame = self.connection.next() or self._until_received()
        if frame.kind == LEAVE:
            raise self._has_left()
        return frame

    def close(self) -> None:
        self.connection.close()

    def _listen_to_the_end(self) -> None:
        """Raise PeerLost with `left` if the other end has said so before it closed the connection."""
        while self.connection.lost is None and (frame := self.connection.next()) is not None:
            if frame.kind == LEAVE:
                raise self._has_left()

    def _has_left(self) -> PeerLost:
        return PeerLost(self.connection.name, "has left, while something was expected of it", left=True)

    def _until_sent(self) -> None:
        connection, wait = self.connection, PeerWait(self.waiter, self.connection)
        try:
            while connection.wants_write:
                listens = self._early is None
                self._poller.modify(connection, BOTH if listens else select.POLLOUT)
                wait.poll(self._poller)
                connection.flush()
                if listens:
                    self._early = connection.next()
        except BaseException:
            connection.close()
            raise
        self._poller.modify(connection, select.POLLIN)
        self.waited += wait.nanoseconds

    def _until_received(self) -> Frame:
        connection, wait = self.connection, PeerWait(self.waiter, self.connection)
        try:
            while (frame := connection.next()) is None:
                wait.poll(self._poller)
        except BaseException:
            connection.close()
            raise
        self.waited += wait.nanoseconds
        return frame
