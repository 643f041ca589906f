"""A connection that never blocks: frames in, frames out, and a queue of what the socket did not take at once."""

from __future__ import annotations

import contextlib
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, monotonic_ns
from typing import TypeAlias

from paceline.errors import PeerLost
from paceline.runtime.links.tcp.frame import (
    HEARTBEAT,
    LEAVE,
    LIMITS,
    Decoder,
    Encoder,
    Frame,
    FrameKeys,
    Limits,
    Place,
    Seal,
)
from paceline.runtime.links.tcp.stream import Stream

FRAMES, READS = 64, 256  # of one connection before others have their turn
#: Bytes of a body that are waited for at once: the least for which that pays, and the most that the kernel is to keep.
SEVERAL, MOST = 1 << 16, 1 << 22
LONGEST_DELAY = 2_500_000_000  # nanoseconds that a peer may claim
#: What can be sent: bytes, an array, a memoryview.
Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Connection:
    """One end of a connection, for an event loop; `blocking.BlockingConnection` is its use by a thread that waits.

    One thread receives. `post`, `flush` and `beat` may be called by several.
    """

    def __init__(
        self,
        stream: Stream,
        name: str,
        limits: Limits = LIMITS,
        place: Place | None = None,
    ) -> None:
        """
        Args:
            stream: a connected socket.
            name: the other end, for messages.
            limits: what is accepted and kept.
            place: where to receive a body; may be changed between two frames.
        """
        self.stream, self.name = stream, name
        #: When bytes last came from the other end, and when some last went there: nanoseconds of the monotonic clock.
        self.heard = self.sent = monotonic_ns()
        #: Nanoseconds by which the other end's threads have run too late of late, as its heartbeats say.
        self.delay = 0
        #: Why the connection is of no use any longer.
        self.lost: PeerLost | None = None
        #: Why nothing can be sent any longer; what the other end has sent before can still be read.
        self._mute: PeerLost | None = None
        #: Whether the last `drain` left something.
        self.unread = False
        #: Whether the last `receive` has taken all that had arrived, or the kernel says so if it has not.
        self._empty = False
        #: How many bytes have to arrive until poll reports them: more than one in the middle of a large body.
        self._due = 1
        #: Bytes that wait in the queue.
        self.queued = 0
        #: Called when a frame could not be sent at once, by the thread that posted it.
        self.on_queued: Callable[[], None] | None = None
        self._encoder, self._decoder = Encoder(limits), Decoder(limits, place)
        self._queue: deque[memoryview] = deque()
        #: Whether some of it is the buffers of `post` themselves.
        self._borrows = False
        #: Whether the sending side is to be shut down as soon as the queue is empty.
        self._finishing = False
        #: Held while the queue or the socket's sending side is used, so that frames do not mix.
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether something waits until the socket can take it."""
        return bool(self._queue)

    def admit(self, name: str, limits: Limits, place: Place | None) -> None:
        """Accept what a known peer may send; until then the limits are those of an unauthenticated one."""
        self.name = name
        self.limit(limits)
        self._decoder.place = place

    def seal(self, keys: FrameKeys) -> None:
        """Send and accept only frames with MACs from the next one on."""
        self._encoder.seal, self._decoder.seal = Seal(keys.sends), Seal(keys.receives)

    @property
    def limits(self) -> Limits:
        """What is accepted and kept."""
        return self._decoder.limits

    def limit(self, limits: Limits) -> None:
        """Accept and keep no more than this from now on."""
        self._encoder.limits = self._decoder.limits = limits

    def receive_into(self, place: Place | None) -> None:
        """Receive the bodies of the frames from the next one on where `place` says."""
        self._decoder.place = place

    # --- sending ---

    def post(self, kind: int, ints: Sequence[int] = (), bodies: Sequence[Buffer] = (), copy: bool = True) -> None:
        """Send a frame, as much of it as the socket takes at once; `flush` sends the rest.

        Args:
            kind: what the frame is.
            ints: its integers.
            bodies: buffers without gaps, which make the body one after another.
            copy: copy what could not be sent at once, so that the caller may change its buffers from now on. If False,
                the buffers must not change before all is sent, or `copy_queue` was called.

        Raises:
            PeerLost: the connection has ended, or too much waits already. Only in the second case `lost` is set: what
                the other end has sent before it ended can still be read.
        """
        views = [memoryview(body).cast("B") for body in bodies if len(body)]
        with self._sending:
            if self.queued > self._encoder.limits.queue:
                raise self._lose(f"does not read: {self.queued} bytes wait for it")
            unsent = [memoryview(self._encoder.head(kind, ints, sum(map(len, views)), views)), *views]
            if not self._queue:
                unsent = self._send(unsent)
            for view in unsent:
                self._queue.append(memoryview(bytes(view)) if copy else view)
                self._borrows |= not copy
                self.queued += len(view)
        if unsent and self.on_queued is not None:
            self.on_queued()

    def flush(self) -> None:
        """Send of the queue what the socket takes."""
        with self._sending:
            if self._queue:
                self._queue = deque(self._send(list(self._queue)))
                self.queued = sum(map(len, self._queue))
            self._shut_down_if_finished()

    def copy_queue(self) -> None:
        """Copy what waits in the queue, so that the buffers of `post` may be changed from now on."""
        if self._borrows:
            with self._sending:
                self._queue = deque(memoryview(bytes(view)) for view in list(self._queue))
                self._borrows = False

    def finish(self) -> None:
        """Tell the other end, after all that waits in the queue, that nothing more is sent."""
        with self._sending:
            self._finishing = True
            self._shut_down_if_finished()

    def beat(self, now: int, interval: int, delay: int = 0) -> None:
        """Send a heartbeat, if nothing was sent for `interval` nanoseconds and nothing waits to be sent.

        `delay` is by how many nanoseconds this process's threads have run too late of late.
        """
        if now - self.sent >= interval and not self._queue and self.lost is self._mute is None:
            self.post(HEARTBEAT, (delay,))

    def _shut_down_if_finished(self) -> None:
        if self._finishing and not self._queue and self.lost is self._mute is None:
            self._finishing = False
            with contextlib.suppress(OSError):  # the other end has closed it
                self.stream.finish()

    def _send(self, buffers: list[memoryview]) -> list[memoryview]:
        """Send until the socket takes no more, and return what is left."""
        if (mute := self.lost or self._mute) is not None:
            raise mute
        while buffers:
            try:
                count = self.stream.send(buffers)
            except OSError as error:
                self._mute = PeerLost(self.name, f"cannot be reached any longer ({error.strerror or error})")
                self._empty_queue()
                raise self._mute from error
            if count is None:
                break
            self.sent = monotonic_ns()
            buffers = _after(buffers, count)
        return buffers

    # --- receiving ---

    def next(self) -> Frame | None:
        """Return the next frame, or None when no complete one has arrived. Heartbeats are left out.

        Raises:
            PeerLost: the other end has closed the connection.
            FrameError: what arrived is not a frame that is allowed.
        """
        while (frame := self._decoded()) is None:
            if not self._receive():
                return None
        return frame

    def drain(self) -> Iterator[Frame]:
        """Yield the frames that have arrived, but no more than a share, for the sake of other connections.

        Afterwards `unread` says whether there may be more, of which the kernel need not know.
        """
        self.unread, self._empty, frames, reads = True, False, FRAMES, READS
        while frames and reads:
            if (frame := self._decoded()) is not None:
                yield frame
                frames -= 1
            elif not self._empty and self._receive():
                reads -= 1
            else:
                self.unread = False
                return

    def _decoded(self) -> Frame | None:
        """Return the next frame of what was received, without heartbeats."""
        while (frame := self._decoder.next()) is not None:
            if frame.kind != HEARTBEAT:
                return frame
            if frame.ints:
                self.delay = max(0, min(frame.ints[0], LONGEST_DELAY))
        return None

    def _receive(self) -> bool:
        """Receive once; whether there was something."""
        if self.lost is not None:
            raise self.lost
        target = self._decoder.target()
        try:
            count = self.stream.receive(target)
        except OSError as error:
            raise self._lose(  # paceline: ignore[PC413]
                f"cannot be reached any longer ({error.strerror or error})"
            ) from error
        if count is None:
            return False
        if not count:
            where = "" if self._decoder.between_frames else " in the middle of a message"
            raise self._lose(f"closed the connection{where}; its process has ended")
        self._decoder.fed(count)
        # After a body seldom anything follows at once: to ask for it costs a system call and an exception.
        self._empty = self.stream.short_is_all and (count < len(target) or self._decoder.body_complete)
        self.heard = monotonic_ns()
        if self._due > 1 or self._decoder.missing >= SEVERAL:
            self._wake_at(min(max(1, self._decoder.missing), MOST))
        return True

    @property
    def partial(self) -> bool:
        """Whether bytes may have arrived that poll does not report, since more of the same body are due."""
        return self._due > 1

    def hurry(self) -> bool:
        """Let poll report whatever arrives next; whether it did not before."""
        partial = self.partial
        self._wake_at(1)
        return partial

    def _wake_at(self, count: int) -> None:
        """Let poll report what arrives from so many bytes on: to be woken for each segment of a body costs more than
        to receive it.
        """
        if count != self._due:
            self._due = count
            self.stream.wake_at(count)

    # --- the end ---

    def _lose(self, why: str) -> PeerLost:
        self.lost = PeerLost(self.name, why)
        self._empty_queue()
        return self.lost

    def _empty_queue(self) -> None:
        # Who receives does not hold the lock: a flush may put back what it has not sent, and nothing is sent of it.
        self._queue.clear()  # paceline: ignore[PC403]
        self.queued = 0

    def close(self) -> None:
        """Close the socket. What waits in the queue is not sent."""
        with self._sending:
            if self.lost is None:
                self._lose("is not connected any longer: this end has closed the connection")
            self.stream.close()


def _after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of some buffers after their first `count` bytes."""
    for number, view in enumerate(buffers):
        if count < len(view):
            return [view[count:], *buffers[number + 1 :]]
        count -= len(view)
    return []


# How a connection is closed so that nothing is lost that was sent before.
#
# A socket that is closed while something lies in it unread is reset, and the kernel throws away what it has not
# delivered yet. Heartbeats lie unread nearly always. So the end of a connection has three steps:
#
#     post LEAVE, flush         1 everything is in the kernel
#     shut down, wait           2 the other end's kernel has confirmed it, whatever its process does meanwhile
#     close                     3 a reset does no harm any longer

LINGER = 2.0  # seconds that the closing of connections may take
LOOK_MILLISECONDS = 2  # between two looks at what the kernel has delivered


def leave(connections: Sequence[Connection], seconds: float = LINGER, kind: int = LEAVE) -> None:
    """Say farewell to the other ends, and close the connections as soon as all has arrived there.

    Args:
        connections: no thread uses them any longer.
        seconds: how long to wait for it at most.
        kind: the last frame.
    """
    for connection in connections:
        with contextlib.suppress(PeerLost):
            connection.post(kind)
            connection.finish()
    end = monotonic() + seconds
    while (waiting := [each for each in connections if _delivers(each)]) and monotonic() < end:
        poller = select.poll()
        for connection in waiting:
            if connection.wants_write:
                poller.register(connection, select.POLLOUT)
        poller.poll(LOOK_MILLISECONDS)
    for connection in connections:
        connection.close()


def _delivers(connection: Connection) -> bool:
    """Send what is queued; whether something of it has not arrived yet."""
    try:
        connection.flush()
        return connection.lost is None and (connection.wants_write or connection.stream.undelivered() > 0)
    except (PeerLost, OSError):
        return False
