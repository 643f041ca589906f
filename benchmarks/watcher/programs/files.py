"""Processes that wait for each other's locks on files."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from typing import IO


def circle(lock: Callable[[IO[str], int], object]) -> None:
    names = [tempfile.mkstemp()[1] for _ in range(2)]
    child = os.fork() == 0
    # Opened after the fork, since a lock of flock belongs to the open file.
    first, second = [open(name, "w") for name in (names if child else reversed(names))]  # noqa: SIM115
    lock(first, fcntl.LOCK_EX)
    time.sleep(0.5)
    lock(second, fcntl.LOCK_EX)


def held_by_a_waiting_child() -> None:
    """The child holds the lock and waits for the parent's word, which waits for the lock."""
    name = tempfile.mkstemp()[1]
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        with open(name, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.read(read, 1)
            return
    os.close(read)
    time.sleep(0.5)
    with open(name, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    os.write(write, b"x")


PROGRAMS = {
    "flock_circle": lambda: circle(fcntl.flock),
    "held_by_a_waiting_child": held_by_a_waiting_child,
}
