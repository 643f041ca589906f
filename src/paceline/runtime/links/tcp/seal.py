"""The MACs of the frames in one direction of a connection: who lacks its key can change, repeat or leave out none.

Each frame has two, so that the numbers of its header are known to be right before memory is reserved for its body:

    of the body    HMAC-SHA256(key, how many frames came before, "body", the body)
    of the head    HMAC-SHA256(key, how many frames came before, "head", header, integers, the MAC of the body)

Both are cut to 16 bytes. The key is made for one direction of one connection (`handshake`).
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

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
