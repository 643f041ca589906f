"""Doors: at which addresses a process can be reached, and how peers are authenticated there.

credentials             where                what it does
---------------  -------------------  ---------------------------------------------------------------
Loopback         this machine only    asks the kernel whether the other end is a process of the same user
TrustedNetwork   any address          both ends prove that they know a token; nothing is encrypted
tls.MutualTls    any address          TLS 1.3; both ends show a certificate of this run
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paceline.errors import SecurityError
from paceline.runtime.links.tcp.address import Address, is_loopback
from paceline.runtime.links.tcp.same_user import require_same_user
from paceline.runtime.links.tcp.stream import PlainStream, Stream
from paceline.runtime.links.tcp.tls import MutualTls

TOKEN_BYTES = 16  # at least
BACKLOG = 512


class Credentials(Protocol):
    """How peers are authenticated."""

    @property
    def token(self) -> bytes | None:
        """What both ends must know; None where the stream itself authenticates peers."""

    @property
    def locked(self) -> bool:
        """Whether they are fit for addresses that other machines can reach."""

    def stream(self, raw: socket.socket, listens: bool, host: str) -> Stream:
        """Return the stream over a connected socket; `host` is the name that was dialled.

        Raises:
            PeerRefused: the other end is not let in, whatever it may say.
        """


@dataclass(frozen=True)
class Loopback:
    """Only this machine can reach it, and only processes of this user are let in."""

    token: bytes | None = None
    locked: bool = False

    def stream(self, raw: socket.socket, listens: bool, host: str) -> Stream:
        require_same_user(raw, listens)
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


def credentials_of(keys: Path | None, token: str | None) -> Credentials:
    """Return the credentials that these options mean: keys, a token, or loopback if both are None."""
    if keys is not None and token is not None:
        raise SecurityError("keys and a token were given; keys alone are enough, and a token alone encrypts nothing")
    if keys is not None:
        return MutualTls(keys)
    return LOOPBACK if token is None else TrustedNetwork(token.encode())


def listen(address: Address, credentials: Credentials) -> socket.socket:
    """Return a socket that listens; port 0 means any.

    Raises:
        SecurityError: other machines could reach it, and the credentials keep no one out.
    """
    require_safe(address, credentials, "listen at")
    family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server(address, family=family, backlog=BACKLOG)


def require_safe(address: Address, credentials: Credentials, verb: str) -> None:
    """Raise SecurityError unless the credentials are fit for the address."""
    if credentials.locked or is_loopback(address.host):
        return
    raise SecurityError(
        f"Paceline does not {verb} {address}, which is not a loopback address, without authentication. "
        "Make keys with `paceline keys FOLDER`, copy FOLDER/node to every machine and give --keys FOLDER; or, on a "
        "network where every machine is trusted, give --trusted-network: a token is asked for, nothing is encrypted"
    )
