"""Whose process is at the other end of a connection within this machine, as the kernel says: loopback is no credential,
since every user of the machine can connect there.

    accepted   the socket that has dialled
    dialled    the socket that was accepted; before that, the one that listens, as only who has it can accept

The kernel is asked by sock_diag, which costs 15 microseconds however many sockets there are; where it was built without
that, or a sandbox forbids it, /proc/net/tcp is read. A socket counts that a process has open, while this end is still
connected: later its ports could be another's.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from paceline.errors import PeerRefused

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
