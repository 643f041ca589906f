"""Which socket is connected to which on this machine: TCP by addresses, Unix sockets by sock_diag.

The other end of a connection that has not been accepted yet is the listening socket: only a process that has it open
can accept the connection, and then answer.
"""

from __future__ import annotations

import re
import socket
import struct
from contextlib import suppress
from pathlib import Path

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP = 4, 20, 0x301
_SHOW, _PEER, _NOT_ACCEPTED = 4 | 8, 2, 3  # what is asked for: peers and waiting connections; their attributes
_DONE, _ERROR = 3, 2
_ESTABLISHED, _LISTENS = "01", "0A"
_ACCEPTS = "00010000"  # a flag of Unix sockets, as /proc/net/unix prints it
_PRIVATE = re.compile(r"/pymp-[^/]+/listener-[^/]+$")
_MAPPED = "0000000000000000FFFF0000"  # an IPv4 address within IPv6, as /proc/net/tcp6 prints it


def peers() -> dict[int, int]:
    """Return the inode of the other end, by the inode of each connected socket of this machine."""
    return _tcp_peers() | _unix_peers()


def unix_sockets() -> frozenset[int]:
    """Return all Unix sockets of this machine."""
    with suppress(OSError):
        return frozenset(
            int(line.split(maxsplit=7)[6])
            for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]
        )
    return frozenset()


def listeners() -> frozenset[int]:
    """Return the sockets of this machine that listen for connections."""
    inodes: set[int] = set()
    for file, state, listens, inode in (("tcp", 3, _LISTENS, 9), ("tcp6", 3, _LISTENS, 9), ("unix", 3, _ACCEPTS, 6)):
        with suppress(OSError):
            lines = Path(f"/proc/net/{file}").read_text(encoding="utf-8").splitlines()[1:]
            inodes |= {int(fields[inode]) for fields in map(str.split, lines) if fields[state] == listens}
    return frozenset(inodes)


def address(inode: int) -> str:
    """Return what a socket is connected to, in words."""
    for file in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{file}").read_text(encoding="utf-8").splitlines()[1:]:
                fields = line.split()
                if int(fields[9]) == inode:
                    listens = fields[3] == _LISTENS
                    return f"a connection {'at' if listens else 'to'} {_readable(fields[1 if listens else 2])}"
    return "a connection to a program of this machine"


def _readable(end: str) -> str:
    """Return an address as people write it, of one as /proc/net/tcp prints it: words of 32 bits, the low byte first."""
    host, _, port = _plain(end).partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    text = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))
    return f"{text}:{int(port, 16)}"


def private_listeners() -> frozenset[int]:
    """Return the sockets at which multiprocessing listens in a folder of its own, for processes of its own program."""
    with suppress(OSError):
        lines = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]]
        return frozenset(int(fields[6]) for fields in lines if len(fields) == 8 and _PRIVATE.search(fields[7]))
    return frozenset()


def _tcp_peers() -> dict[int, int]:
    by_ends: dict[tuple[str, str], int] = {}
    listening: dict[str, int] = {}
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(file).read_text(encoding="utf-8").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _ESTABLISHED:
                    by_ends[_plain(fields[1]), _plain(fields[2])] = int(fields[9])
                elif fields[3] == _LISTENS:
                    listening[_plain(fields[1])] = int(fields[9])
    peers = {inode: by_ends[there, here] for (here, there), inode in by_ends.items() if (there, here) in by_ends}
    waiting = {inode: _listener(there, listening) for (_, there), inode in by_ends.items() if peers.get(inode) == 0}
    return peers | waiting


def _listener(address: str, listening: dict[str, int]) -> int:
    """Return the socket that listens at an address, or at its port on all addresses; 0 if there is none."""
    host, port = address.split(":")
    everywhere = (f"{'0' * len(host)}:{port}", f"{'0' * 32}:{port}")
    return next((listening[each] for each in (address, *everywhere) if each in listening), 0)


def _plain(end: str) -> str:
    return end.removeprefix(_MAPPED)


def _unix_peers() -> dict[int, int]:
    """Dump all Unix sockets with their peers; empty where the kernel was built without unix_diag."""
    # nlmsghdr, then unix_diag_req: family, protocol, pad, states (all), inode (any), what to show, cookie.
    body = struct.pack("=BBHIIIQ", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW, 0xFFFFFFFFFFFFFFFF)
    request = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + body
    peers: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.send(request)
            while _take_messages(kernel.recv(1 << 16), peers):
                pass
    except OSError:
        return {}
    return peers


def _take_messages(data: bytes, peers: dict[int, int]) -> bool:
    """Add the peers that one answer of the kernel holds; return whether more answers follow."""
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if kind in (_DONE, _ERROR):
            return False
        (inode,) = struct.unpack_from("=I", data, 16 + 4)
        at = 16 + 16  # after unix_diag_msg
        while at + 4 <= length:
            size, attribute = struct.unpack_from("=HH", data, at)
            numbers = struct.unpack_from(f"={max(size - 4, 0) // 4}I", data, at + 4)
            if attribute == _PEER and numbers[0]:
                peers[inode] = numbers[0]
            elif attribute == _NOT_ACCEPTED:
                peers |= dict.fromkeys(numbers, inode)
            at += (size + 3) & ~3 or 4
        data = data[(length + 3) & ~3 :]
    return True
