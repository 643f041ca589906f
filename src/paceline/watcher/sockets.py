"""Which socket is connected to which on this machine: TCP by addresses, Unix sockets by sock_diag."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP = 4, 20, 0x301
_SHOW_PEER, _PEER_ATTRIBUTE = 4, 2
_DONE, _ERROR = 3, 2
_MAPPED = "0000000000000000FFFF0000"  # an IPv4 address within IPv6, as /proc/net/tcp6 prints it


def peers() -> dict[int, int]:
    """Return the inode of the other end, by the inode of each connected socket of this machine."""
    return _tcp_peers() | _unix_peers()


def _tcp_peers() -> dict[int, int]:
    by_ends: dict[tuple[str, str], int] = {}
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(file).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "01":  # ESTABLISHED
                    by_ends[_plain(fields[1]), _plain(fields[2])] = int(fields[9])
    return {inode: by_ends[there, here] for (here, there), inode in by_ends.items() if (there, here) in by_ends}


def _plain(end: str) -> str:
    return end.removeprefix(_MAPPED)


def _unix_peers() -> dict[int, int]:
    """Dump all Unix sockets with their peers; empty where the kernel was built without unix_diag."""
    # nlmsghdr, then unix_diag_req: family, protocol, pad, states (all), inode (any), what to show, cookie.
    body = struct.pack("=BBHIIIQ", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_PEER, 0xFFFFFFFFFFFFFFFF)
    request = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + body
    found: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.send(request)
            while _take_messages(kernel.recv(1 << 16), found):
                pass
    except OSError:
        return {}
    return found


def _take_messages(data: bytes, found: dict[int, int]) -> bool:
    """Add the peers that one answer of the kernel holds; return whether more answers follow."""
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if kind in (_DONE, _ERROR):
            return False
        (inode,) = struct.unpack_from("=I", data, 16 + 4)
        at = 16 + 16  # after unix_diag_msg
        while at + 4 <= length:
            size, attribute = struct.unpack_from("=HH", data, at)
            if attribute == _PEER_ATTRIBUTE:
                found[inode] = struct.unpack_from("=I", data, at + 4)[0]
            at += (size + 3) & ~3 or 4
        data = data[(length + 3) & ~3 :]
    return True
