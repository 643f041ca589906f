"""The exchange by which two machines prove that they know the same code, without saying it (SPAKE2).

machine that joins                           machine that trains
------------------                           -------------------
TLS, with any machine ---------------------> shows the certificate of the run
the number of the code, SPAKE2 of side A --> is there such a code?
                       <-------------------- SPAKE2 of side B
a proof that it has the key ---------------> is it right? If not, that was a guess
                       <-------------------- a proof that it has the key, too

The certificate that each end has seen is part of the exchange: with a machine between them that shows another one, the
two ends have different keys, and the first proof is wrong. So what follows on the connection is between these two
alone. Who joins proves first: a stranger learns nothing from an exchange that it does not finish.
"""

from __future__ import annotations

import hmac
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import Any

from paceline.errors import FrameError, MachineError, PeerLost, PeerRefused, UsageError
from paceline.runtime.links.pairing.code import Code, Codes, Verdict
from paceline.runtime.links.tcp.address import Address

JOINS, TRAINS = b"paceline join", b"paceline train --open"
VERSION = 1


#: What the machine that joins says at these verdicts.
REASONS: dict[int, str] = {
    Verdict.WRONG: "the code is wrong: look at the other screen again",
    Verdict.NO_NUMBER: "it has no code with this number: look at its screen for the newest one",
    Verdict.USED_UP: "a machine has joined with this code, which is for one machine: its screen shows the next one",
    Verdict.BUSY: "another machine is about to join with this code; wait for it, or for the next code on the screen",
    Verdict.WITHDRAWN: "wrong words were given for this code too often: its screen shows a longer one",
}


def package() -> Any:
    """Return the module spake2.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import spake2
    except ModuleNotFoundError as error:
        raise UsageError("joining by a code needs the package spake2: `pip install 'paceline[pair]'`") from error
    return spake2


def prove(line: Line, code: Code, certificate: bytes, name: str) -> None:
    """Prove to a machine that trains that this one knows its code, and have it prove the same.

    Args:
        line: the connection.
        code: what a person has typed here.
        certificate: what the other end has shown.
        name: what messages call it.

    Raises:
        PeerRefused: the code is wrong or used up, or the other end does not know it.
    """
    side = package().SPAKE2_A(code.words.encode(), idA=JOINS, idB=sha256(certificate).digest())
    line.send_json({"version": VERSION, "number": code.number})
    line.send(side.start())
    _require_right(line, name)
    key = _key(side, line.receive(), name)
    line.send(_proof(key, JOINS))
    _require_right(line, name)
    if not hmac.compare_digest(line.receive(), _proof(key, TRAINS)):
        raise PeerRefused(f"{name} does not know the code: it is not the machine that printed it")


def verify(line: Line, codes: Codes, certificate: bytes, name: str) -> Code:
    """Return the code that a machine that joins knows.

    Args:
        line: the connection.
        codes: decides which code is good.
        certificate: what this machine has shown.
        name: what messages call the other end.

    Raises:
        PeerRefused: it knows none of them; WrongCode where it has guessed.
    """
    number = _number(line.receive_json())
    message = line.receive()
    verdict, code = codes.verdict(number)
    line.send(bytes([verdict]))
    if code is None:
        raise PeerRefused(f"{name} gave code {number}-...: {verdict.name.lower().replace('_', ' ')}")
    side = package().SPAKE2_B(code.words.encode(), idA=JOINS, idB=sha256(certificate).digest())
    line.send(side.start())
    key = _key(side, message, name)
    verdict = codes.judge(code, hmac.compare_digest(line.receive(), _proof(key, JOINS)))
    if verdict is not Verdict.RIGHT:
        line.send(bytes([verdict]))
        raise (WrongCode if verdict is Verdict.WRONG else PeerRefused)(f"{name} gave a wrong code")
    try:
        line.send(bytes([verdict]))
        line.send(_proof(key, TRAINS))
    except PeerLost:
        codes.release(joined=False)
        raise
    return code


class WrongCode(PeerRefused):
    """A machine has guessed a code, wrongly."""


def _number(hello: Mapping[str, Any]) -> int:
    if hello.get("version") != VERSION or not isinstance(hello.get("number"), int):
        raise PeerRefused("it speaks another protocol: install the same version of Paceline on both machines")
    return int(hello["number"])


def _require_right(line: Line, name: str) -> None:
    (number,) = line.receive(1) or b"\xff"
    if number == Verdict.RIGHT:
        return
    reason = REASONS.get(number, "it speaks another protocol")
    raise PeerRefused(f"{name} did not let this machine in: {reason}")


def _key(side: Any, message: bytes, name: str) -> bytes:
    try:
        key: bytes = side.finish(message)
    except Exception as error:  # spake2 has a dozen, of three base classes
        raise PeerRefused(f"{name} sent no message of SPAKE2") from error
    return key


def _proof(key: bytes, of: bytes) -> bytes:
    return hmac.new(key, of, sha256).digest()


# Messages over a connection: each has its length before it, and all of them come before a deadline or not at all.

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
            self._raw.sendall(b"".join((len(content).to_bytes(4, "big"), content)))
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


# --- A visit at the door of a run: this machine proves that it knows the code, and then talks -------------------------

REACH = 10.0  # seconds in which a machine has to accept a connection, and to prove that it knows the code


@contextmanager
def visit(door: Address, code: Code, source: str = "") -> Iterator[tuple[Line, str]]:
    """Yield the connection to the machine that has printed the code, and the address by which this machine reaches it.

    `source` is the address of this machine to go from, if it matters.

    Raises:
        UsageError: spake2 is not installed.
        MachineError: the other machine cannot be reached.
        PeerRefused: it does not let this one in, or does not know the code.
        PeerLost: it does not answer.
    """
    package()
    raw = _connected(door, source)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # `prove` says whose certificate it is
    try:
        tls = context.wrap_socket(raw)
    except OSError as error:
        raw.close()
        raise MachineError(
            f"what listens at {door} is no run of `paceline train --open`, or wrong codes came from this machine: "
            f"then it is looked at again after half a minute. {error}"
        ) from error
    with closing(tls):
        line = Line(tls, str(door), REACH)
        prove(line, code, tls.getpeercert(binary_form=True) or b"", str(door))
        yield line, str(tls.getpeername()[0])


def _connected(door: Address, source: str) -> socket.socket:
    try:
        return socket.create_connection(door, REACH, (source, 0))
    except TimeoutError as error:
        raise MachineError(
            f"{door} does not answer within {REACH:g} s: a firewall on that machine drops what arrives (open port "
            f"{door.port} for TCP there), or the two machines are in different networks. `paceline doctor --to "
            f"{door.host}` looks closer"
        ) from error
    except ConnectionRefusedError as error:
        raise MachineError(
            f"nothing listens at {door}: the run has ended, it lets no machine in any longer, or the port is another; "
            "look at the other screen"
        ) from error
    except OSError as error:
        raise MachineError(
            f"{door} cannot be reached: {error.strerror or error}; give another address that the other screen shows"
        ) from error
