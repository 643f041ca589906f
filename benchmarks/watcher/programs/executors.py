"""Pools whose tasks wait for tasks that the pool cannot start."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor


def nested() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: pool.submit(int).result()).result()


def all_wait_for_the_last() -> None:
    """Both threads of a pool wait for an event that only a third task would set."""
    event = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(event.wait)
        pool.submit(event.wait)
        pool.submit(event.set)


def ends_itself(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_worker() -> None:
    """A pool of multiprocessing replaces a worker that was killed, and forgets its task."""
    with mp.get_context("fork").Pool(1) as pool:
        pool.map(ends_itself, [1])


PROGRAMS = {"nested": nested, "all_wait_for_the_last": all_wait_for_the_last, "killed_worker": killed_worker}
