"""Some threads hold each other's locks for ever while the rest of the program goes on."""

from __future__ import annotations

import threading
import time
from typing import Any


def circle(kind: Any, size: int) -> None:
    locks = [kind() for _ in range(size)]

    def run(number: int) -> None:
        with locks[number]:
            time.sleep(0.3)
            with locks[(number + 1) % size]:
                pass

    for number in range(size):
        threading.Thread(target=run, args=(number,), daemon=True).start()


def while_main_works() -> None:
    circle(threading.Lock, 2)
    while True:
        sum(range(100_000))
        time.sleep(0.01)


def while_main_ticks() -> None:
    circle(threading.RLock, 3)
    while True:
        time.sleep(1)


def joined_with_a_lock() -> None:
    """The main thread joins a thread that needs the lock that the main thread holds; another thread ticks."""
    lock = threading.Lock()

    def tick() -> None:
        while True:
            time.sleep(0.5)

    def run() -> None:
        time.sleep(0.3)
        with lock:
            pass

    threading.Thread(target=tick, daemon=True).start()
    thread = threading.Thread(target=run)
    thread.start()
    with lock:
        thread.join()


def asks_again() -> None:
    """Both ask for the other's lock with a timeout, again and again, and never give their own back."""
    first, second = threading.Lock(), threading.Lock()

    def run(mine: Any, other: Any) -> None:
        with mine:
            time.sleep(0.3)
            while not other.acquire(timeout=1):
                pass

    threads = [threading.Thread(target=run, args=each) for each in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        threads[0].join(1)


PROGRAMS = {
    "while_main_works": while_main_works,
    "while_main_ticks": while_main_ticks,
    "joined_with_a_lock": joined_with_a_lock,
    "asks_again": asks_again,
}
