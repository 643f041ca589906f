"""Programs of coroutines, pipes and locks that wait as applications do and do not hang; developed with."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from pathlib import Path

from filelock import FileLock


def lock_held_over_a_slow_answer() -> None:
    """Requests queue for the lock of one that waits for a server; the server is another process."""

    async def main() -> None:
        lock = asyncio.Lock()
        child = await asyncio.create_subprocess_exec("sleep", "600")

        async def request() -> None:
            async with lock:
                await child.wait()

        await asyncio.gather(*(request() for _ in range(3)))

    asyncio.run(main())


def coroutine_waits_for_a_file() -> None:
    async def main() -> None:
        file = Path(tempfile.mkdtemp()) / "done"
        while not file.exists():
            await asyncio.sleep(0.5)

    asyncio.run(main())


def consumers_idle_beside_a_timer() -> None:
    async def main() -> None:
        items: asyncio.Queue[int] = asyncio.Queue()

        async def consume() -> None:
            while True:
                await items.get()
                items.task_done()

        consumers = [asyncio.create_task(consume()) for _ in range(4)]
        while True:
            await asyncio.sleep(12)
            await items.put(1)
            await items.join()
            assert not any(each.done() for each in consumers)

    asyncio.run(main())


def daemon_with_a_named_pipe() -> None:
    fifo = Path(tempfile.gettempdir()) / "commands"
    os.mkfifo(fifo)
    while True:
        fifo.read_text()


def file_lock_of_a_slow_holder() -> None:
    file = Path(tempfile.mkdtemp()) / "build.lock"
    if os.fork() == 0:
        with FileLock(file):
            time.sleep(600)
        os._exit(0)
    time.sleep(0.5)
    with FileLock(file):
        pass


def event_that_a_thread_sets() -> None:
    async def main() -> None:
        loop, answered = asyncio.get_running_loop(), asyncio.Event()

        def compute() -> None:
            time.sleep(600)
            loop.call_soon_threadsafe(answered.set)

        threading.Thread(target=compute, daemon=True).start()
        await answered.wait()

    asyncio.run(main())


PROGRAMS = {
    each.__name__: each
    for each in (
        lock_held_over_a_slow_answer, coroutine_waits_for_a_file, consumers_idle_beside_a_timer,
        daemon_with_a_named_pipe, file_lock_of_a_slow_holder, event_that_a_thread_sets,
    )
}  # fmt: skip
