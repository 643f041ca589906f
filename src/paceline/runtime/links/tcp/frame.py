"""Frames: what travels over a connection, and the MACs that protect it. Nothing here touches a socket.

    offset  bytes
         0      8   b"paceline"
         8      1   version of the protocol
         9      1   kind
        10      2   number of integers
        12      4   number of the frame: 0, 1, 2, ... in each direction of a connection
        16      8   bytes of the body
        24    8 n   the integers, signed
               32   under a token: two MACs, of the body and of all before it (`seal`)
              ...   the body

All of it is little-endian. Integers say what is meant; bodies are tensors and, rarely, text. Nothing is unpickled or
evaluated, and every number of a header is checked before memory is reserved for what it announces.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from paceline.errors import FrameError, ProtocolError

MAGIC, VERSION = b"paceline", 2
HEADER = Struct("<8sBBHIQ")
NUMBERS = 1 << 32  # frame numbers wrap
CHANGED = "a frame was changed on its way, or is none of this connection: its MAC is another"
STAGE = 4096  # bytes received at once while no body is under way: a header, its integers, the beginning of the body

# Kinds below FIRST_KIND belong to this package.
HEARTBEAT, HELLO, CHALLENGE, PROOF, WELCOME, LEAVE, SPAN, CALL_OFF, MESSAGE, TAKEN = range(10)
FIRST_KIND = 16

#: Called with kind, integers and size of an announced body: where to receive it; None for memory of its own.
Place = Callable[[int, tuple[int, ...], int], memoryview | None]


class Limits(NamedTuple):
    """What a connection accepts and keeps."""

    ints: int = 4096  # of one frame
    body: int = 1 << 30  # bytes of one frame
    queue: int = 1 << 28  # bytes that may wait for a peer that does not read, when one more frame is posted


LIMITS = Limits()


class Frame(NamedTuple):
    """One message between two processes."""

    kind: int
    ints: tuple[int, ...]
    body: memoryview


class _Announced(NamedTuple):
    """A header that was checked."""

    kind: int
    ints: int
    size: int


NO_BODY = memoryview(bytearray())


@lru_cache(maxsize=256)
def _integers(count: int) -> Struct:
    return Struct(f"<{count}q")


@lru_cache(maxsize=256)
def _head(count: int) -> Struct:
    return Struct(f"<8sBBHIQ{count}q")


class Encoder:
    """The sending side of one direction: it numbers the frames."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        #: Makes the MACs of the frames from the next one on; None without a token.
        self.seal: Seal | None = None
        self._number = 0

    def head(self, kind: int, ints: Sequence[int], size: int, bodies: Sequence[memoryview] = ()) -> bytes:
        """Return what precedes the body of the next frame: `size` bytes, which are those of `bodies`."""
        _check_sizes(len(ints), size, self.limits, "this process was about to send")
        head = _head(len(ints)).pack(MAGIC, VERSION, kind, len(ints), self._number, size, *ints)
        self._number = (self._number + 1) % NUMBERS
        return head if self.seal is None else head + self.seal.of(head, bodies)


class Decoder:
    """The receiving side of one direction. Bytes go in where `target` says, frames come out of `next`.

        view = decoder.target()            1 where the next bytes belong: the body itself, or the stage
        decoder.fed(socket.recv_into(view))
        while (frame := decoder.next()) is not None:
            ...                            2 nothing of the frame after it was interpreted yet

    A body is received straight into its place, but for the part that came with its header. After a FrameError the
    direction is of no use any longer.
    """

    def __init__(self, limits: Limits = LIMITS, place: Place | None = None) -> None:
        self.limits, self.place = limits, place
        #: Checks the frames from the next one on; None without a token.
        self.seal: Seal | None = None
        self._number = 0
        self._stage = memoryview(bytearray(STAGE))
        #: Received bytes of the stage that are not interpreted yet: stage[start:stop].
        self._start = self._stop = 0
        self._announced: _Announced | None = None
        self._ints: tuple[int, ...] = ()
        #: The body under way, of which `_got` bytes are there; None before its place is known.
        self._body: memoryview | None = None
        self._got = 0

    @property
    def between_frames(self) -> bool:
        """Whether no part of a frame has arrived that is not complete."""
        return self._announced is None and self._start == self._stop

    @property
    def body_complete(self) -> bool:
        """Whether the last bytes of a body were received straight into its place; then nothing else has been read."""
        return self._announced is not None and self._body is not None and self._got == self._announced.size

    @property
    def missing(self) -> int:
        """The bytes of the body under way that have not come yet; 0 if none is."""
        return 0 if self._body is None else len(self._body) - self._got

    def target(self) -> memoryview:
        """Return where the next bytes belong. It is never empty, if `next` returned None before."""
        if self._body is not None:
            return self._body[self._got :]
        self._make_room()
        return self._stage[self._stop :]

    def fed(self, count: int) -> None:
        """Note that `count` bytes were written into the target."""
        if self._body is not None:
            self._got += count
        else:
            self._stop += count

    def next(self) -> Frame | None:
        """Return the next frame that is complete.

        Raises:
            FrameError: the bytes are not a frame, or not one that is allowed.
        """
        # 1. The header, as soon as it is there, and its limits.
        if self._announced is None:
            if self._stop - self._start < HEADER.size:
                if self._stop > self._start:
                    self._check_magic()  # another program's request may be shorter than a header
                return None
            self._announced = self._read_header()
        kind, count, size = self._announced
        # 2. The integers, then the body's place, which may depend on them.
        if self._body is None:
            if self._stop - self._start < self._due(count):
                return None
            self._ints = _integers(count).unpack_from(self._stage, self._start)
            self._start += 8 * count
            if self.seal is not None:
                self._open(self.seal, count)
            self._body = self._place_of(kind, size)
            self._got = self._take_staged(self._body)
        # 3. The body.
        if self._got < size:
            return None
        if self.seal is not None and not self.seal.fits(self._body):
            raise FrameError("mac", CHANGED)
        frame = Frame(kind, self._ints, self._body)
        self._announced, self._body = None, None
        return frame

    def _read_header(self) -> _Announced:
        magic, version, kind, count, number, size = HEADER.unpack_from(self._stage, self._start)
        if magic != MAGIC:
            self._check_magic()
        if version != VERSION:
            raise FrameError(
                "version",
                f"the other end speaks version {version} of the protocol and this one {VERSION}: install the same "
                "version of Paceline on all machines",
            )
        if number != self._number:
            raise FrameError("number", f"a frame has number {number} where {self._number} was due")
        _check_sizes(count, size, self.limits, "what arrived announces")
        self._number = (number + 1) % NUMBERS
        self._start += HEADER.size
        return _Announced(kind, count, size)

    def _due(self, count: int) -> int:
        """Return the bytes between a header that announces so many integers and its body."""
        return 8 * count + (0 if self.seal is None else SEAL_BYTES)

    def _open(self, seal: Seal, count: int) -> None:
        """Check the header and its integers, before memory is reserved for what they announce."""
        assert self._announced is not None
        kind, _, size = self._announced
        head = _head(count).pack(MAGIC, VERSION, kind, count, (self._number - 1) % NUMBERS, size, *self._ints)
        if not seal.opens(head, self._stage[self._start : self._start + SEAL_BYTES]):
            raise FrameError("mac", CHANGED)
        self._start += SEAL_BYTES

    def _check_magic(self) -> None:
        begin = bytes(self._stage[self._start : min(self._stop, self._start + len(MAGIC))])
        if begin != MAGIC[: len(begin)]:
            raise FrameError("magic", f"what arrived begins with {begin!r}, which is no frame of Paceline")

    def _place_of(self, kind: int, size: int) -> memoryview:
        if not size:
            return NO_BODY
        place = None if self.place is None else self.place(kind, self._ints, size)
        if place is None:
            return memoryview(bytearray(size))
        if place.nbytes != size:
            raise ProtocolError(f"{place.nbytes} bytes were named for a body of {size}; a bug in Paceline")
        return place.cast("B")

    def _take_staged(self, body: memoryview) -> int:
        """Move what has come with the header into the body; return how much."""
        count = min(len(body), self._stop - self._start)
        body[:count] = self._stage[self._start : self._start + count]
        self._start += count
        return count

    def _make_room(self) -> None:
        """Let the stage have room for what is due: a header, or integers whose number was checked."""
        start, stop = self._start, self._stop
        due = HEADER.size if self._announced is None else self._due(self._announced.ints)
        if start == stop:
            self._start = self._stop = start = stop = 0
        if start + due > len(self._stage):
            room = self._stage if due <= len(self._stage) else memoryview(bytearray(due))
            room[: stop - start] = bytes(self._stage[start:stop])
            self._stage, self._start, self._stop = room, 0, stop - start


def _check_sizes(ints: int, size: int, limits: Limits, who: str) -> None:
    if ints > limits.ints:
        raise FrameError("integers", f"{who} a frame of {ints} integers, where {limits.ints} are allowed")
    if size > limits.body:
        raise FrameError("body", f"{who} a body of {size} bytes, where {limits.body} are allowed")


# The MACs of the frames in one direction of a connection: who lacks its key can change, repeat or leave out none.
# Each frame has two, so that the numbers of its header are known to be right before memory is reserved for its body:
#
#     of the body    HMAC-SHA256(key, how many frames came before, "body", the body)
#     of the head    HMAC-SHA256(key, how many frames came before, "head", header, integers, the MAC of the body)
#
# Both are cut to 16 bytes. The key is made for one direction of one connection (`handshake`).

MAC = 16  # bytes
SEAL_BYTES = 2 * MAC


class FrameKeys(NamedTuple):
    """The keys of one end of a connection."""

    sends: bytes
    receives: bytes


class Seal:
    """Makes the MACs of what one end sends, or checks those of what it receives."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod=sha256)
        #: Frames before this one; the header's own number wraps.
        self._count = 0
        #: What the body under way has to have.
        self._body = b""

    def of(self, head: bytes, bodies: Sequence[memoryview]) -> bytes:
        """Return the MACs of the next frame."""
        body = self._mac(b"body", *bodies)
        seal = body + self._mac(b"head", head, body)
        self._count += 1
        return seal

    def opens(self, head: bytes, seal: memoryview) -> bool:
        """Whether the next frame's header and integers are as they were sent."""
        self._body = bytes(seal[:MAC])
        return hmac.compare_digest(self._mac(b"head", head, self._body), seal[MAC:])

    def fits(self, body: memoryview) -> bool:
        """Whether its body is, too."""
        right = hmac.compare_digest(self._mac(b"body", body), self._body)
        self._count += 1
        return right

    def _mac(self, part: bytes, *content: bytes | memoryview) -> bytes:
        mac = self._keyed.copy()
        mac.update(self._count.to_bytes(8, "little") + part)
        for each in content:
            mac.update(each)
        return mac.digest()[:MAC]
