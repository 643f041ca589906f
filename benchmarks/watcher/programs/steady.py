"""Programs that do little, by a clock, and do not hang."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sched
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from multiprocessing.sharedctypes import Synchronized


def coroutines_with_a_queue() -> None:
    async def main() -> None:
        items: asyncio.Queue[int] = asyncio.Queue()

        async def produce() -> None:
            while True:
                await asyncio.sleep(9)
                await items.put(1)

        task = asyncio.create_task(produce())
        while not task.done():
            try:
                await asyncio.wait_for(items.get(), timeout=0.5)
            except TimeoutError:
                continue

    asyncio.run(main())


def database_behind_a_slow_writer() -> None:
    file = os.path.join(tempfile.mkdtemp(), "slow.sqlite")
    sqlite3.connect(file).execute("create table t (x)")
    if os.fork() == 0:
        writer = sqlite3.connect(file, isolation_level=None)
        writer.execute("begin immediate")
        time.sleep(600)
        os._exit(0)
    time.sleep(1)
    sqlite3.connect(file, timeout=3600).execute("insert into t values (1)")


def daemon_with_a_plan() -> None:
    plan = sched.scheduler()
    running = True

    def later() -> None:
        plan.enter(20, 1, later)

    later()
    while running:
        plan.run(blocking=False)
        time.sleep(1)


def count(done: Synchronized[int]) -> None:
    for _ in range(100):
        time.sleep(5)
        with done.get_lock():
            done.value += 1


def count_in_shared_memory() -> None:
    done = multiprocessing.Value("i", 0)
    children = [multiprocessing.Process(target=count, args=(done,)) for _ in range(2)]
    for child in children:
        child.start()
    while done.value < 200:
        time.sleep(0.5)


class Job:
    """A job of a batch system, whose state is in a file that another machine writes."""

    def __init__(self) -> None:
        descriptor, self.file = tempfile.mkstemp()
        os.close(descriptor)

    @property
    def state(self) -> str:
        """The state that was written last."""
        with open(self.file) as file:
            return file.read() or "pending"


def state_of_a_job() -> None:
    job = Job()
    while job.state != "done":
        time.sleep(0.5)


def child_that_serves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    child = subprocess.Popen([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"])
    while child.poll() is None:
        time.sleep(0.5)


PROGRAMS = {
    each.__name__: each
    for each in (
        coroutines_with_a_queue, database_behind_a_slow_writer, daemon_with_a_plan, count_in_shared_memory,
        state_of_a_job, child_that_serves,
    )
}  # fmt: skip
