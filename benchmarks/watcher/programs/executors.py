"""Pools whose tasks wait for tasks that the pool cannot start."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from concurrent.futures import ThreadPoolExecutor


def nested() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: pool.submit(int).result()).result()


def two_wait_for_each_other() -> None:
    with ThreadPoolExecutor(2) as pool:
        futures: list[object] = []
        futures.append(
            pool.submit(lambda: futures[1].result() if len(futures) > 1 else pool.submit(wait_second).result())
        )  # type: ignore[attr-defined]

        def wait_second() -> None:
            futures[0].result()  # type: ignore[attr-defined]


def ends_itself(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_worker() -> None:
    """A pool of multiprocessing replaces a worker that was killed, and forgets its task."""
    with mp.get_context("fork").Pool(1) as pool:
        pool.map(ends_itself, [1])


PROGRAMS = {"nested": nested, "two_wait_for_each_other": two_wait_for_each_other, "killed_worker": killed_worker}
