"""Programs that sleep until a time comes."""

from __future__ import annotations

import asyncio
import threading
import time


def threads_and_an_event() -> None:
    event = threading.Event()
    threads = [threading.Thread(target=event.wait, args=(600,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ticks() -> None:
    while True:
        time.sleep(1)


PROGRAMS = {
    "long_sleep": lambda: time.sleep(600),
    "ticks": ticks,
    "threads_and_an_event": threads_and_an_event,
    "event_loop": lambda: asyncio.run(asyncio.sleep(600)),
    "lock_until_a_timeout": lambda: (lock := threading.Lock()).acquire() and lock.acquire(timeout=600),
}
