"""Locks on files and databases that are never given back."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import tempfile
import time


def name() -> str:
    return tempfile.mkstemp()[1]


def held_by_a_stopped_process() -> None:
    file = name()
    if os.fork() == 0:
        with open(file, "w") as mine:
            fcntl.flock(mine, fcntl.LOCK_EX)
            os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)
    with open(file, "w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)


def opened_twice() -> None:
    """Two descriptions of one file, in one process."""
    file = name()
    with open(file, "w") as first, open(file, "w") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        fcntl.flock(second, fcntl.LOCK_EX)


def three_orders() -> None:
    files = [name() for _ in range(3)]
    for number in range(3):
        if os.fork() == 0:
            with open(files[number], "w") as mine, open(files[(number + 1) % 3], "w") as other:
                fcntl.flock(mine, fcntl.LOCK_EX)
                time.sleep(0.5)
                fcntl.flock(other, fcntl.LOCK_EX)
            os._exit(0)
    for _ in range(3):
        os.wait()


def database_locked_by_itself() -> None:
    """A second connection waits, polling, for what the first one of the same thread has begun."""
    file = name()
    first, second = sqlite3.connect(file), sqlite3.connect(file, timeout=3600)
    first.execute("create table t (x)")
    first.execute("begin immediate")
    second.execute("begin immediate")


def database_locked_by_a_waiting_child() -> None:
    file = name()
    read, write = os.pipe()
    sqlite3.connect(file).execute("create table t (x)")
    if os.fork() == 0:
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute("begin exclusive")
        os.read(read, 1)
    time.sleep(0.5)
    sqlite3.connect(file, timeout=3600).execute("insert into t values (1)")
    os.write(write, b"x")


PROGRAMS = {
    "held_by_a_stopped_process": held_by_a_stopped_process,
    "opened_twice": opened_twice,
    "three_orders": three_orders,
    "database_locked_by_itself": database_locked_by_itself,
    "database_locked_by_a_waiting_child": database_locked_by_a_waiting_child,
}
