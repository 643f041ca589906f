"""Event loops in which nothing can happen any more."""

from __future__ import annotations

import asyncio
import threading


async def never_set() -> None:
    await asyncio.get_running_loop().create_future()


async def locked_twice() -> None:
    lock = asyncio.Lock()
    async with lock, lock:
        pass


async def waits_for_itself() -> None:
    """The loop's thread waits for a coroutine that only this thread could run."""
    loop = asyncio.get_running_loop()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()


async def thread_waits_for_the_loop() -> None:
    """The loop waits for a thread, and the thread for the loop."""
    event = threading.Event()
    await asyncio.to_thread(event.wait)
    event.set()


PROGRAMS = {
    "never_set": lambda: asyncio.run(never_set()),
    "locked_twice": lambda: asyncio.run(locked_twice()),
    "waits_for_itself": lambda: asyncio.run(waits_for_itself()),
    "thread_waits_for_the_loop": lambda: asyncio.run(thread_waits_for_the_loop()),
}
