"""Hostile bytes, from a seed: what a stranger might send to a process that listens. Shared with benchmarks/wire."""

from __future__ import annotations

import random
import select
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from paceline.runtime.links.tcp.frame import HEADER, HELLO, MAGIC, PROOF, VERSION, WELCOME, Encoder

#: Closing resets the connection, so that a million of them leave no ports in use.
RESET = struct.pack("ii", 1, 0)


def header(kind: int, ints: int, number: int, size: int) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, ints, number, size)


def hello(run: bytes, job: bytes, peer: tuple[int, ...] = (3, 0, 0), nonce: bytes = b"") -> bytes:
    encoder, body = Encoder(), run + job + nonce
    return encoder.head(HELLO, peer, len(body)) + body


class Hostile(NamedTuple):
    """What a stranger sends on one connection."""

    sent: bytes
    unfinished: bool  # the other end may wait for more of it


def hostile(seed: int, run: bytes, job: bytes) -> Iterator[Hostile]:
    """Yield, for ever, what strangers send. They know neither the run's number nor its token."""
    chance = random.Random(seed)
    strange_run, strange_job = (bytes(each ^ 255 for each in known) for known in (run, job))
    finished = (
        lambda: chance.randbytes(chance.randint(1, 3000)).replace(b"p", b"q"),
        lambda: b"GET / HTTP/1.1\r\nHost: paceline\r\n\r\n",
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(500),  # begins as TLS does
        lambda: header(chance.randrange(256), 3, 0, 10 ** chance.randint(4, 18)),  # up to a terabyte and beyond
        lambda: header(HELLO, chance.randint(4, 65535), 0, 48),
        lambda: header(HELLO, 3, chance.randint(1, 2**32 - 1), 48) + chance.randbytes(72),
        lambda: hello(strange_run, job),
        lambda: hello(run, strange_job),
        lambda: hello(run, job, (chance.randint(256, 2**60), 0, 0)),
        lambda: hello(chance.randbytes(16), chance.randbytes(32), (0, 0, 0), chance.randbytes(32)),
        lambda: header(chance.randrange(256), 0, 0, 0) * chance.randint(1, 20),
        lambda: header(WELCOME, 3, 0, 48) + struct.pack("<3q", 1, 0, 0) + run + job,
        lambda: header(PROOF, 0, 0, 32) + chance.randbytes(32),
    )
    unfinished = (
        lambda: hello(run, job)[: chance.randint(1, 95)],
        lambda: _flipped(hello(strange_run, job), chance),
    )
    while True:
        if chance.random() < 0.15:
            yield Hostile(chance.choice(unfinished)(), True)
        else:
            yield Hostile(chance.choice(finished)(), False)


def _flipped(sent: bytes, chance: random.Random) -> bytes:
    changed = bytearray(sent)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(HEADER.size + 24)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def closed_by_the_other_end(stranger: socket.socket, seconds: float) -> bool:
    """Wait until a connection is closed, without an answer."""
    poller = select.poll()
    poller.register(stranger, select.POLLIN)
    if not poller.poll(1000 * seconds):
        return False
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def attack(address: tuple[str, int], sent: bytes, source: str = "127.0.0.1") -> socket.socket:
    """Connect from an address of this machine, send, and return the socket, to be closed by `reset`."""
    raw = socket.socket()
    raw.bind((source, 0))
    raw.connect(address)
    raw.setblocking(False)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    raw.send(sent)
    return raw
