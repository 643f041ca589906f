"""Processes that wait for an answer that comes late."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import time


def late_answer(tcp: bool) -> None:
    if tcp:
        with socket.create_server(("127.0.0.1", 0)) as server:
            pair = socket.create_connection(server.getsockname()), server.accept()[0]
    else:
        pair = socket.socketpair()
    if os.fork() == 0:
        pair[0].close()
        while True:
            time.sleep(12)
            pair[1].send(b"x")
    pair[1].close()
    while pair[0].recv(1):
        pass


def late_pipe() -> None:
    read, write = os.pipe()
    if os.fork() == 0:
        time.sleep(600)
        os.write(write, b"x")
    os.close(write)
    os.read(read, 1)


def lock_held_by_a_sleeper() -> None:
    name = tempfile.mkstemp()[1]
    if os.fork() == 0:
        with open(name, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(600)
    time.sleep(0.5)
    with open(name, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


PROGRAMS = {
    "late_answer": lambda: late_answer(tcp=False),
    "late_answer_tcp": lambda: late_answer(tcp=True),
    "late_pipe": late_pipe,
    "lock_held_by_a_sleeper": lock_held_by_a_sleeper,
}
