"""Deadlocks in which the threads wake up now and then to look: each wait has a timeout, and is begun again."""

from __future__ import annotations

import queue
import threading
import time


def timed_locks() -> None:
    locks = [threading.Lock(), threading.Lock()]

    def run(number: int) -> None:
        with locks[number]:
            time.sleep(0.5)
            while not locks[1 - number].acquire(timeout=1):
                pass

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def timed_queue() -> None:
    items: queue.Queue[int] = queue.Queue()
    while True:
        try:
            items.get(timeout=0.5)
        except queue.Empty:
            continue


PROGRAMS = {"timed_locks": timed_locks, "timed_queue": timed_queue}
