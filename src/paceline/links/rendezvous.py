"""How processes that were started by somebody else, and know only a store, come to share descriptors.

rank 0    listens on a socket that has a name but no file, and tells the store the name
others    connect; the kernel says who they are, and hands the descriptors over
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import RunFailed, UsageError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

CREDENTIALS = struct.Struct("3i")  # process, user, group


def machine() -> str:
    """Processes with the same answer can see each other's sockets and process numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')} {os.readlink('/proc/self/ns/pid')}"


def share(
    store: Store, rank: int, ranks: int, make: Callable[[], tuple[list[int], Any]], deadline: float
) -> tuple[list[int], Any]:
    """What rank 0 makes: its descriptors, and something that JSON can say. Everyone else's are copies of the same."""
    if rank == 0:
        descriptors, said = make()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind("\0paceline-" + secrets.token_hex(16))
            door.listen(ranks)
            door.settimeout(deadline)
            place = {"machine": machine(), "door": door.getsockname().decode(), "count": len(descriptors), "said": said}
            store.set("place", json.dumps(place))
            _hand_out(door, ranks - 1, descriptors, deadline)
        return descriptors, said
    place = json.loads(store.get("place"))
    if place["machine"] != machine():
        raise UsageError(
            f"rank {rank} is on another machine, or in another container, than rank 0; "
            "this works between processes of one machine that see each other"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
        visitor.settimeout(deadline)
        visitor.connect(place["door"].encode())
        _, descriptors, _, _ = socket.recv_fds(visitor, 1, place["count"])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return list(descriptors), place["said"]


def _hand_out(door: socket.socket, visitors: int, descriptors: list[int], deadline: float) -> None:
    while visitors:
        try:
            visitor, _ = door.accept()
        except TimeoutError:
            raise RunFailed(f"{visitors} ranks did not come within {deadline:g} s; are all of them started?") from None
        with visitor:
            asked = visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            if CREDENTIALS.unpack(asked)[1] == os.getuid():
                socket.send_fds(visitor, [b"!"], descriptors)
                visitors -= 1
