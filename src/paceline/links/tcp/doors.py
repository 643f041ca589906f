"""Doors: at which addresses a process can be reached, and how peers are authenticated there.

door             where                what it does
---------------  -------------------  ---------------------------------------------------------------
Loopback         this machine only    nothing: other machines cannot reach it
TrustedNetwork   any address          both ends prove that they know a token; nothing is encrypted
tls.MutualTls    any address          TLS 1.3; both ends show a certificate of this run
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from paceline.errors import SecurityError, UsageError
from paceline.links.tcp.stream import PlainStream, Stream

TOKEN_BYTES = 16  # at least
BACKLOG = 512


class Address(NamedTuple):
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read HOST:PORT or [HOST]:PORT."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"{text!r} is no address; write HOST:PORT, or [HOST]:PORT for IPv6")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class Door(Protocol):
    """How peers are authenticated."""

    @property
    def token(self) -> bytes | None:
        """What both ends must know; None where the door itself authenticates peers."""

    @property
    def locked(self) -> bool:
        """Whether it is fit for addresses that other machines can reach."""

    def stream(self, raw: socket.socket, listens: bool, host: str) -> Stream:
        """Return the stream over a connected socket; `host` is the name that was dialled."""


@dataclass(frozen=True)
class Loopback:
    """Only this machine can reach it."""

    token: bytes | None = None
    locked: bool = False

    def stream(self, raw: socket.socket, listens: bool, host: str) -> Stream:
        return PlainStream(raw)


LOOPBACK = Loopback()


@dataclass(frozen=True)
class TrustedNetwork:
    """A network on which no one listens or changes what others send: it takes the token to join, nothing is hidden."""

    token: bytes = field(repr=False)
    locked: bool = True

    def __post_init__(self) -> None:
        if len(self.token) < TOKEN_BYTES:
            raise SecurityError(
                f"a token of {len(self.token)} bytes can be guessed; give at least {TOKEN_BYTES}, as "
                "`python -c 'import secrets; print(secrets.token_hex(16))'` prints"
            )

    def stream(self, raw: socket.socket, listens: bool, host: str) -> Stream:
        return PlainStream(raw)


def listen(address: Address, door: Door) -> socket.socket:
    """Return a socket that listens; port 0 means any.

    Raises:
        SecurityError: other machines could reach it, and the door keeps no one out.
    """
    require_safe(address, door, "listen at")
    family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server(address, family=family, backlog=BACKLOG)


def require_safe(address: Address, door: Door, verb: str) -> None:
    """Raise SecurityError unless the door is fit for the address."""
    if door.locked or is_loopback(address.host):
        return
    raise SecurityError(
        f"Paceline does not {verb} {address}, which is not a loopback address, without authentication. "
        "Make keys with `paceline keys FOLDER`, copy FOLDER/node to every machine and give --keys FOLDER; or, on a "
        "network where every machine is trusted, give --trusted-network: a token is asked for, nothing is encrypted"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host; a name must mean loopback addresses alone."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
