"""Two processes that both receive, or both send."""

from __future__ import annotations

import os
import socket


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        return here, server.accept()[0]


def talk(pair: tuple[socket.socket, socket.socket], sends: bool) -> None:
    mine, other = pair if os.fork() else pair[::-1]
    other.close()
    if sends:
        mine.sendall(b"x" * 50_000_000)
    mine.recv(1)


PROGRAMS = {
    "both_receive": lambda: talk(socket.socketpair(), sends=False),
    "both_send": lambda: talk(socket.socketpair(), sends=True),
    "both_receive_tcp": lambda: talk(tcp_pair(), sends=False),
    "both_send_tcp": lambda: talk(tcp_pair(), sends=True),
}
