"""Messages over a connection: each has its length before it, and all of them come before a deadline or not at all."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from paceline.errors import FrameError, PeerLost

SHORT = 1 << 16  # bytes of a message that is no part of a file, at most


class Line:
    """A connection between two machines, while they pair."""

    def __init__(self, raw: socket.socket, name: str, seconds: float) -> None:
        """`name` is what messages call the other end; `seconds` are those within which it has to say all."""
        self._raw, self._name = raw, name
        #: Bytes that were sent and received.
        self.sent = self.received = 0
        self.allow(seconds)

    def allow(self, seconds: float) -> None:
        """Let everything from now on come within so many seconds."""
        self._deadline = time.monotonic() + seconds

    def send(self, content: bytes | memoryview) -> None:
        """Send a message.

        Raises:
            PeerLost: the other end does not take it.
        """
        try:
            self._wait_at_most_until_deadline()
            self._raw.sendall(len(content).to_bytes(4, "big"))
            self._raw.sendall(content)
        except OSError as error:
            raise PeerLost(self._name, f"takes no more: {error.strerror or error}") from error
        self.sent += 4 + len(content)

    def receive(self, most: int = SHORT) -> bytes:
        """Return the next message.

        Raises:
            PeerLost: it does not come.
            FrameError: it has more than `most` bytes.
        """
        size = int.from_bytes(self._bytes(4), "big")
        if size > most:
            raise FrameError("length", f"{self._name} sends {size} bytes at once, and at most {most} are allowed")
        return self._bytes(size)

    def send_json(self, value: Mapping[str, Any]) -> None:
        self.send(json.dumps(value).encode())

    def receive_json(self) -> dict[str, Any]:
        """Return the next message, which is an object of JSON."""
        try:
            value = json.loads(self.receive())
        except (ValueError, RecursionError) as error:
            raise FrameError("body", f"{self._name} sends what cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise FrameError("body", f"{self._name} sends a {type(value).__name__} where an object belongs")
        return value

    def _bytes(self, size: int) -> bytes:
        content = bytearray(size)
        view, at = memoryview(content), 0
        while at < size:
            try:
                self._wait_at_most_until_deadline()
                count = self._raw.recv_into(view[at:])
            except OSError as error:
                raise PeerLost(self._name, f"does not answer: {error.strerror or error}") from error
            if not count:
                raise PeerLost(self._name, "has ended the connection")
            at += count
        self.received += size
        return bytes(content)

    def _wait_at_most_until_deadline(self) -> None:
        self._raw.settimeout(max(0.001, self._deadline - time.monotonic()))
