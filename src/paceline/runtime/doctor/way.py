"""The way to another machine, on which `paceline doctor --listen` answers.

Who answers echoes what it is sent, says what its clock shows, and opens one connection back to the one that asks. It
runs nothing, tells nothing else, and ends after a visit.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from statistics import median

from paceline.errors import MachineError
from paceline.runtime.doctor import Finding, Grade
from paceline.runtime.links.tcp.address import Address, accepts

PORT = 29472  # at which a machine answers
REACH = 3.0  # seconds in which a connection has to be accepted
PATIENCE = 5.0  # seconds in which a message has to come
ROUNDS = 20
FIRST, BULK = 32 << 10, 16 << 20  # bytes by which packets are tried, and the speed is measured
HEADER = struct.Struct("<4sId")  # what it is, its bytes, and the clock of who sends it
ECHO, TAKE, BACK = b"echo", b"take", b"back"
IP_MTU = 14
LATE = 1.0  # seconds by which clocks may differ: certificates and the times of files bear a day
SLOW, FAR = 12.5e6, 0.005  # bytes per second, and seconds there and back: of a poor Wi-Fi


def answer(host: str, ready: Callable[[Address], None]) -> str:
    """Answer one machine that asks, and return its address; `ready` gets the address to ask at."""
    try:
        listener = socket.create_server((host, PORT))
    except OSError as error:
        raise MachineError(f"port {PORT} cannot be used: {error.strerror}; is another doctor here?") from error
    with listener:
        ready(Address(*listener.getsockname()[:2]))
        while True:
            raw, where = listener.accept()
            raw.settimeout(3 * PATIENCE)  # so that the other end speaks of what does not come
            with closing(raw), suppress(OSError, _Gone):
                _serve(raw, str(where[0]))
                return str(where[0])


class _Gone(Exception):
    """The other end has closed the connection."""


def _serve(raw: socket.socket, host: str) -> None:
    """Answer until the other end is done."""
    while True:
        try:
            kind, size, _ = HEADER.unpack(_receive(raw, HEADER.size))
        except _Gone:
            return
        if size > BULK:
            raise _Gone
        body = _receive(raw, size)
        reply = b""
        if kind == BACK:
            reply = b"1" if accepts(Address(host, int.from_bytes(body[:2], "big")), REACH) else b"0"
        raw.sendall(HEADER.pack(kind, len(reply), time.time()) + reply)


def _ask(raw: socket.socket, kind: bytes, body: bytes = b"") -> tuple[float, float, bytes]:
    """Send a message; return the seconds until its answer, by how much the other clock is ahead, and the answer."""
    start, clock = time.perf_counter(), time.time()
    raw.sendall(HEADER.pack(kind, len(body), clock) + body)
    _, size, theirs = HEADER.unpack(_receive(raw, HEADER.size))
    reply = _receive(raw, size)
    seconds = time.perf_counter() - start
    return seconds, theirs - clock - seconds / 2, reply


def _receive(raw: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = raw.recv(min(1 << 16, size - len(content)))
        if not part:
            raise _Gone
        content += part
    return bytes(content)


def examine(to: Address) -> Iterator[Finding]:
    """Yield what there is to say of the way to another machine."""
    try:
        raw = socket.create_connection(to, REACH)
    except OSError as error:
        yield _unreached(to, error)
        return
    with closing(raw):
        raw.settimeout(PATIENCE)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        mine = str(raw.getsockname()[0])
        try:
            yield from _met(raw, to, mine)
        except (OSError, _Gone) as error:
            text = f"{to} accepts connections and does not answer: {error}"
            yield Finding("there", Grade.FAULT, text, f"run `paceline doctor --listen` on {to.host}")


def _met(raw: socket.socket, to: Address, mine: str) -> Iterator[Finding]:
    rounds = [_ask(raw, ECHO) for _ in range(ROUNDS)]
    yield Finding("there", Grade.GOOD, f"port {to.port} of {to.host} can be reached from {mine}")
    with socket.create_server(("", 0)) as listener:
        number = int(listener.getsockname()[1])
        _, _, reply = _ask(raw, BACK, number.to_bytes(2, "big"))
    if reply == b"1":
        yield Finding("back", Grade.GOOD, f"{to.host} reaches this machine at {mine}")
    else:
        text = f"{to.host} cannot open a connection to this machine at {mine}: a firewall here drops what arrives"
        yield Finding("back", Grade.FAULT, text, f"let TCP in from it, as by `ufw allow from {to.host}`")
    latency = median(seconds for seconds, _, _ in rounds)
    ahead = min(rounds)[1]
    clock = Finding("clock", Grade.GOOD, f"the two clocks differ by {abs(ahead) * 1e3:.0f} ms")
    if abs(ahead) > LATE:
        text = f"the clock of {to.host} is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
        clock = Finding("clock", Grade.NOTE, text, "timedatectl set-ntp true, on both; a run is right all the same")
    yield clock
    yield from _speed(raw, to, latency)


def _speed(raw: socket.socket, to: Address, latency: float) -> Iterator[Finding]:
    mtu = raw.getsockopt(socket.IPPROTO_IP, IP_MTU)
    try:
        seconds, _, _ = _ask(raw, TAKE, bytes(FIRST))
    except (TimeoutError, _Gone):
        text = f"small packets reach {to.host} and large ones (MTU {mtu}) are lost on the way"
        remedy = "ip link set DEVICE mtu 1280, on both machines; a tunnel or a switch between them carries less"
        yield Finding("packets", Grade.FAULT, text, remedy)
        return
    yield Finding("packets", Grade.GOOD, f"packets of {mtu} bytes arrive")
    size = max(FIRST, min(BULK, int(FIRST / max(seconds - latency, 1e-6))))  # what takes a second, at most
    seconds, _, _ = _ask(raw, TAKE, bytes(size))
    rate = size / max(seconds - latency, 1e-6)
    text = f"{rate / 1e6:,.1f} MB/s, and {latency * 1e3:.2f} ms there and back"
    if rate < SLOW or latency > FAR:
        remedy = "use a cable; or a codec (ring:codec=int8), or diloco, which exchanges seldom"
        yield Finding("speed", Grade.NOTE, text, remedy)
    else:
        yield Finding("speed", Grade.GOOD, text)


def _unreached(to: Address, error: OSError) -> Finding:
    if isinstance(error, ConnectionRefusedError):
        text = f"{to.host} is there, and nothing answers at port {to.port}"
        return Finding("there", Grade.FAULT, text, f"run `paceline doctor --listen` on {to.host}")
    if isinstance(error, TimeoutError):
        text = f"{to} does not answer within {REACH:g} s: a firewall there drops what arrives, or it is another network"
        remedy = f"on {to.host}: `ufw allow from` this machine's address; and see that both are in one network"
        return Finding("there", Grade.FAULT, text, remedy)
    return Finding("there", Grade.FAULT, f"{to.host} cannot be reached: {error.strerror or error}", "give its address")
