"""Pools with more workers than work."""

from __future__ import annotations

import multiprocessing as mp
import queue
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

FORK = mp.get_context("fork")


def one_task_of_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(time.sleep, [0, 0, 0, 600]))


def one_task_of_processes() -> None:
    with ProcessPoolExecutor(3, mp_context=FORK) as pool:
        list(pool.map(time.sleep, [0, 0, 600]))


def multiprocessing_pool() -> None:
    with FORK.Pool(3) as pool:
        pool.map(time.sleep, [0, 0, 600])


def slow_producer() -> None:
    items: queue.Queue[int] = queue.Queue()
    for _ in range(3):
        threading.Thread(target=items.get).start()
    while True:
        time.sleep(30)


def computes(items: Any) -> None:
    while True:
        sum(range(100_000))


def waits_for_a_busy_process() -> None:
    items: Any = FORK.Queue()
    FORK.Process(target=computes, args=(items,)).start()
    items.get()


PROGRAMS = {
    "one_task_of_threads": one_task_of_threads,
    "one_task_of_processes": one_task_of_processes,
    "multiprocessing_pool": multiprocessing_pool,
    "slow_producer": slow_producer,
    "waits_for_a_busy_process": waits_for_a_busy_process,
}
