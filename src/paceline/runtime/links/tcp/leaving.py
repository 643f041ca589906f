"""How a connection is closed so that nothing is lost that was sent before.

A socket that is closed while something lies in it unread is reset, and the kernel throws away what it has not
delivered yet. Heartbeats lie unread nearly always. So the end of a connection has three steps:

    post LEAVE, flush         1 everything is in the kernel
    shut down, wait           2 the other end's kernel has confirmed it, whatever its process does meanwhile
    close                     3 a reset does no harm any longer
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Sequence
from time import monotonic

from paceline.errors import PeerLost
from paceline.runtime.links.tcp.connection import Connection
from paceline.runtime.links.tcp.frame import LEAVE

LINGER = 2.0  # seconds that the closing of connections may take
LOOK_MILLISECONDS = 2  # between two looks at what the kernel has delivered


def leave(connections: Sequence[Connection], seconds: float = LINGER, kind: int = LEAVE) -> None:
    """Say farewell to the other ends, and close the connections as soon as all has arrived there.

    Args:
        connections: no thread uses them any longer.
        seconds: how long to wait for it at most.
        kind: the last frame.
    """
    for connection in connections:
        with contextlib.suppress(PeerLost):
            connection.post(kind)
            connection.finish()
    end = monotonic() + seconds
    while (waiting := [each for each in connections if _delivers(each)]) and monotonic() < end:
        poller = select.poll()
        for connection in waiting:
            if connection.wants_write:
                poller.register(connection, select.POLLOUT)
        poller.poll(LOOK_MILLISECONDS)
    for connection in connections:
        connection.close()


def _delivers(connection: Connection) -> bool:
    """Send what is queued; whether something of it has not arrived yet."""
    try:
        connection.flush()
        return connection.lost is None and (connection.wants_write or connection.stream.undelivered() > 0)
    except (PeerLost, OSError):
        return False
