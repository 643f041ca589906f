"""Forks while a thread holds a lock, and pools that lose what they wait for."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
import time

FORK = mp.get_context("fork")
LOCK = threading.Lock()


def hold(lock: threading.Lock, seconds: float) -> threading.Thread:
    held = threading.Event()

    def run() -> None:
        with lock:
            held.set()
            time.sleep(seconds)

    thread = threading.Thread(target=run)
    thread.start()
    held.wait()
    return thread


def square(number: int) -> int:
    with LOCK:
        return number * number


def pool_with_a_held_lock() -> None:
    hold(LOCK, 2)
    with FORK.Pool(3) as pool:
        pool.map(square, range(6))


def process_with_a_held_lock() -> None:
    hold(LOCK, 1)
    child = FORK.Process(target=square, args=(3,))
    child.start()
    child.join()


def dies(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def pool_whose_worker_is_killed() -> None:
    with FORK.Pool(2) as pool:
        pool.map(dies, range(4), chunksize=1)


PROGRAMS = {
    "pool_with_a_held_lock": pool_with_a_held_lock,
    "process_with_a_held_lock": process_with_a_held_lock,
    "pool_whose_worker_is_killed": pool_whose_worker_is_killed,
}
