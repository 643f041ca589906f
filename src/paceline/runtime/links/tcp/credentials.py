"""Doors: at which addresses a process can be reached, and how peers are authenticated there.

credentials             where                what it does
---------------  -------------------  ---------------------------------------------------------------
Loopback         this machine only    asks the kernel whether the other end is a process of the same user
TrustedNetwork   any address          both ends prove that they know a token; nothing is encrypted
tls.MutualTls    any address          TLS 1.3; both ends show a certificate of this run
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from paceline.errors import PeerRefused, SecurityError
from paceline.runtime.links.tcp.address import Address, is_loopback
from paceline.runtime.links.tcp.stream import PlainStream, Stream
from paceline.runtime.links.tcp.tls import MutualTls

# Whose process is at the other end of a connection within this machine, as the kernel says: loopback is no credential,
# since every user of the machine can connect there.
#
#     accepted   the socket that has dialled
#     dialled    the socket that was accepted; before that, the one that listens, as only who has it can accept
#
# The kernel is asked by sock_diag, which costs 15 microseconds however many sockets there are; where it was built
# without that, or a sandbox forbids it, /proc/net/tcp is read. A socket counts that a process has open, while this
# end is still connected: later its ports could be another's.

ESTABLISHED, LISTENS = 1, 10
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, REQUEST = 4, 20, 1
SECONDS = 1.0  # in which the kernel has to answer
MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address within IPv6
GONE = "is no process of this machine, or has closed the connection"
EVERYONE = str((1 << 32) - 1)  # users, in the map of a process that is in no user namespace of its own


class End(NamedTuple):
    """An end of a connection, its address as the network has it."""

    address: bytes
    port: int


class MachineHost(NamedTuple):
    """What the kernel says of a socket; inode 0 while no process has it open."""

    state: int
    user: int
    inode: int


def require_same_user(raw: socket.socket, listens: bool) -> None:
    """Raise PeerRefused unless the other end of a connection is a process of this one's user, on this machine.

    Args:
        raw: the connected socket, of which nothing was read.
        listens: whether this process has accepted it; else it has dialled.

    Raises:
        OSError: the connection has ended.
    """
    local, remote = _end(raw, raw.getsockname()), _end(raw, raw.getpeername())
    # First the listener: if the connection waits to be accepted after that, it waited there.
    listener = None if listens else _owner(remote, End(local.address, 0))
    owner = _owner(remote, local)
    if owner is None or owner.state != ESTABLISHED or not _is_connected(raw):
        raise PeerRefused(GONE)
    if not owner.inode and listener is not None and listener.state == LISTENS:
        owner = listener
    if not owner.inode:
        raise PeerRefused(GONE)
    user = os.geteuid()
    if owner.user != user:
        raise PeerRefused(
            f"belongs to another user (uid {owner.user}, and this process to uid {user}): on loopback only processes "
            "of one user meet. Start all of them as the same user, or give --keys or --trusted-network"
        )
    if _matches_others(user):
        raise PeerRefused(
            f"cannot be told from other users: in this user namespace uid {user} stands for all who have no number of "
            "their own. Run as another user, or give --keys or --trusted-network"
        )


def _end(raw: socket.socket, name: tuple[str, int]) -> End:
    packed = socket.inet_pton(raw.family, name[0].partition("%")[0])
    return End(packed.removeprefix(MAPPED) if raw.family == socket.AF_INET6 else packed, name[1])


def _is_connected(raw: socket.socket) -> bool:
    return raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED


def _owner(end: End, other: End) -> MachineHost | None:
    """Return the owner of the socket at `end` that is connected to `other`; of the one that listens, at port 0."""
    return (_by_diag if _has_diag() else _by_table)(end, other)


def _by_diag(end: End, other: End) -> MachineHost | None:
    family = socket.AF_INET if len(end.address) == 4 else socket.AF_INET6
    # nlmsghdr; inet_diag_req_v2: family, protocol, extensions, states (all), ports, addresses, interface, cookie (any).
    body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + struct.pack("!HH", end.port, other.port)
    body += struct.pack("=16s16sIQ", end.address, other.address, 0, 0xFFFFFFFFFFFFFFFF)
    request = struct.pack("=IHHII", 16 + len(body), SOCK_DIAG_BY_FAMILY, REQUEST, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(SECONDS)
        kernel.send(request)
        answer = kernel.recv(4096)
    if struct.unpack_from("=H", answer, 4) != (SOCK_DIAG_BY_FAMILY,):
        return None  # there is no such socket
    return MachineHost(answer[17], *struct.unpack_from("=II", answer, 16 + 64))


@cache
def _has_diag() -> bool:
    """Whether the kernel answers such questions: it is asked for a socket that listens."""
    with suppress(OSError), socket.create_server(("127.0.0.1", 0)) as listener:
        end = _end(listener, listener.getsockname())
        owner = _by_diag(end, End(end.address, 0))
        return owner is not None and owner.inode == os.fstat(listener.fileno()).st_ino
    return False


def _by_table(end: End, other: End) -> MachineHost | None:
    if other.port:
        endpoints = [(_printed(end), _printed(other))]
    else:
        hosts = (end.address, bytes(4), bytes(16))  # this one, or all
        endpoints = [(_printed(End(host, end.port)), _printed(End(bytes(len(host)), 0))) for host in hosts]
    for fields in _rows():
        if (fields[1], fields[2]) in endpoints:
            return MachineHost(int(fields[3], 16), int(fields[7]), int(fields[9]))
    return None


def _rows() -> Iterator[list[str]]:
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(file).read_text(encoding="ascii").splitlines()[1:]:
                yield line.replace(f" {_hex(MAPPED)}", " ").split()


def _printed(end: End) -> str:
    return f"{_hex(end.address)}:{end.port:04X}"


def _hex(address: bytes) -> str:
    """Return bytes as these tables have them: words of 32 bits, in the order of this machine."""
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", address))


@cache
def _matches_others(user: int) -> bool:
    """Whether the kernel shows users that have no number in this user namespace as this one."""
    if user != int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii")):
        return False
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split()[2] != EVERYONE


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
