"""Whether the head of Ray can still be reached. A minute after it cannot, Ray ends every process of the cluster."""

from __future__ import annotations

import socket
import threading
import time

from paceline.runtime.links.tcp.address import Address

LOOK = 1.0  # seconds between two attempts to reach it
#: Seconds after which the kernel gives up a connection whose other end confirms nothing.
SILENCE_MILLISECONDS = 6000


class RayWatch:
    """Keeps a connection to the head of Ray, over which nothing is sent: its end says that the process has ended."""

    def __init__(self, head: Address) -> None:
        self._head = head
        self._stop = threading.Event()
        #: Since when the head cannot be reached, by the monotonic clock; None while it can.
        self.lost_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-ray-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                with socket.create_connection(self._head, LOOK) as connection:
                    self.lost_since = None
                    self._stay(connection)
            except OSError:
                self.lost_since = self.lost_since or began
            self._stop.wait(LOOK)

    def _stay(self, connection: socket.socket) -> None:
        """Return when the connection has ended: the head closes one that says nothing, from time to time."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 2)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MILLISECONDS)
        while not self._stop.is_set():
            try:
                if not connection.recv(4096):
                    return
            except TimeoutError:
                continue
