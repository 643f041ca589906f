"""Threads that wait for each other's locks."""

from __future__ import annotations

import threading
import time


def circle(size: int) -> None:
    """Each thread holds one lock and wants the next thread's."""
    locks = [threading.Lock() for _ in range(size)]

    def run(number: int) -> None:
        with locks[number]:
            time.sleep(0.5)
            with locks[(number + 1) % size]:
                pass

    threads = [threading.Thread(target=run, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def taken_twice() -> None:
    lock = threading.Lock()
    with lock, lock:
        pass


def never_notified() -> None:
    condition = threading.Condition()

    def run() -> None:
        with condition:
            condition.wait()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def left_locked() -> None:
    """A lock that an exception has left locked."""
    lock = threading.Lock()

    def run() -> None:
        lock.acquire()
        raise SystemExit

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    lock.acquire()


PROGRAMS = {
    "two_orders": lambda: circle(2),
    "three_orders": lambda: circle(3),
    "taken_twice": taken_twice,
    "never_notified": never_notified,
    "left_locked": left_locked,
}
