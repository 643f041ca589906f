"""Programs that hang while they ask again and again, by a clock, for what nothing can give any more."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import queue
import sqlite3
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor


def workers_without_a_producer() -> None:
    """The thread that fills the queue has failed; the workers wait in steps, so that they could be told to stop."""
    tasks: queue.Queue[int] = queue.Queue()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                task = tasks.get(timeout=0.3)
            except queue.Empty:
                continue
            sorted(range(task))
            tasks.task_done()

    def produce() -> None:
        for number in range(5):
            tasks.put(number)
            tasks.put([][number])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in [*threads, threading.Thread(target=produce)]:
        thread.start()
    for thread in threads:
        thread.join()


def sleeps_for_a_flag() -> None:
    state = {"loaded": False}

    def load() -> None:
        with open("/no/such/file") as file:
            file.read()
        state["loaded"] = True

    threading.Thread(target=load).start()
    while not state["loaded"]:
        time.sleep(0.1)


def database_written_by_a_task() -> None:
    """The thread that began a transaction waits for a task that writes through another connection."""
    file = os.path.join(tempfile.mkdtemp(), "tasks.sqlite")
    connection = sqlite3.connect(file)
    connection.execute("create table done (task)")
    connection.commit()

    def write() -> None:
        other = sqlite3.connect(file, timeout=3600)
        with other:
            other.execute("insert into done values (2)")

    connection.execute("insert into done values (1)")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    connection.commit()


def file_lock_tried_again() -> None:
    file = os.path.join(tempfile.mkdtemp(), "lock")
    with open(file, "w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        child = os.fork()
        if child == 0:
            with open(file, "w") as its:
                while True:
                    try:
                        fcntl.flock(its, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        time.sleep(0.2)
            os._exit(0)
        os.waitpid(child, 0)


def fill(items: multiprocessing.Queue[bytes]) -> None:
    items.put(b"x" * 1_000_000)


def child_alive_until_emptied() -> None:
    items: multiprocessing.Queue[bytes] = multiprocessing.Queue()
    child = multiprocessing.Process(target=fill, args=(items,))
    child.start()
    while child.is_alive():
        time.sleep(0.2)
    items.get()


def coroutine_sleeps_for_a_flag() -> None:
    async def main() -> None:
        ready: list[int] = []

        async def prepare() -> None:
            await asyncio.sleep(0.5)
            ready.append([][0])

        task = asyncio.create_task(prepare())
        while not ready:
            await asyncio.sleep(0.1)
        await task

    asyncio.run(main())


PROGRAMS = {
    each.__name__: each
    for each in (
        workers_without_a_producer, sleeps_for_a_flag, database_written_by_a_task, file_lock_tried_again,
        child_alive_until_emptied, coroutine_sleeps_for_a_flag,
    )
}  # fmt: skip
