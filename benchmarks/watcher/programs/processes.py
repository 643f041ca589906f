"""Parents that wait for children that wait for them."""

from __future__ import annotations

import multiprocessing as mp
import os
import threading
from multiprocessing.connection import Connection
from typing import Any


def waits_for_word(connection: Connection) -> None:
    connection.recv()


def joined_before_told() -> None:
    mine, other = mp.Pipe()
    child = mp.get_context("fork").Process(target=waits_for_word, args=(other,))
    child.start()
    child.join()
    mine.send(None)


def fills(items: Any) -> None:
    items.put("x" * 10_000_000)


def joined_before_emptied() -> None:
    context = mp.get_context("fork")
    items: Any = context.Queue()
    child = context.Process(target=fills, args=(items,))
    child.start()
    child.join()
    items.get()


def forked_with_a_lock() -> None:
    lock, release = threading.Lock(), threading.Event()

    def hold() -> None:
        with lock:
            release.wait()

    threading.Thread(target=hold).start()
    pid = os.fork()
    if pid == 0:
        with lock:
            os._exit(0)
    os.waitpid(pid, 0)
    release.set()


PROGRAMS = {
    "joined_before_told": joined_before_told,
    "joined_before_emptied": joined_before_emptied,
    "forked_with_a_lock": forked_with_a_lock,
}
