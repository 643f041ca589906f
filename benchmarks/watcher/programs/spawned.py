"""Processes started by spawn or forkserver, and what multiprocessing shares between them."""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from typing import Any

SPAWN = mp.get_context("spawn")


def start(*runs: tuple[Any, ...]) -> None:
    children = [SPAWN.Process(target=run, args=arguments) for run, *arguments in runs]
    for child in children:
        child.start()
    for child in children:
        child.join()


def takes(first: Any, second: Any) -> None:
    with first:
        time.sleep(1)
        with second:
            pass


def locks_in_two_orders() -> None:
    a, b = SPAWN.Lock(), SPAWN.Lock()
    start((takes, a, b), (takes, b, a))


def fills(items: Any) -> None:
    items.put(b"x" * 5_000_000)


def joined_before_the_queue_is_read() -> None:
    items = SPAWN.Queue()
    start((fills, items))


def receives(connection: Any) -> None:
    connection.recv()
    connection.send(None)


def both_receive() -> None:
    mine, other = SPAWN.Pipe()
    child = SPAWN.Process(target=receives, args=(other,))
    child.start()
    mine.recv()


def waits(event: Any) -> None:
    event.wait()


def event_never_set() -> None:
    start((waits, SPAWN.Event()), (waits, SPAWN.Event()))


def works(items: Any) -> None:
    while True:
        items.get()


def queue_never_done() -> None:
    items: Any = SPAWN.JoinableQueue()
    SPAWN.Process(target=works, args=(items,), daemon=True).start()
    items.put(1)
    items.join()


def task_reads_its_own_pipe() -> None:
    with SPAWN.Pool(1) as pool:
        pool.apply(reads_its_own_pipe)


def reads_its_own_pipe() -> None:
    read, _write = os.pipe()
    os.read(read, 1)


PROGRAMS = {
    "locks_in_two_orders": locks_in_two_orders,
    "joined_before_the_queue_is_read": joined_before_the_queue_is_read,
    "both_receive": both_receive,
    "event_never_set": event_never_set,
    "queue_never_done": queue_never_done,
    "task_reads_its_own_pipe": task_reads_its_own_pipe,
}
