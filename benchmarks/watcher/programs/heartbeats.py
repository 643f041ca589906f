"""Programs that hang although one of their threads goes on: it prints, measures or waits with a timeout."""

from __future__ import annotations

import queue
import threading
import time


def beats() -> None:
    def run() -> None:
        while True:
            time.sleep(1)
            print("alive", flush=True)

    threading.Thread(target=run, daemon=True).start()


def lock_taken_twice() -> None:
    beats()
    lock = threading.Lock()
    with lock, lock:
        pass


def two_orders() -> None:
    beats()
    first, second = threading.RLock(), threading.RLock()

    def run() -> None:
        with second:
            time.sleep(0.5)
            with first:
                pass

    threading.Thread(target=run).start()
    with first:
        time.sleep(0.5)
        with second:
            pass


def queue_never_done() -> None:
    beats()
    items: queue.Queue[int] = queue.Queue()
    items.put(1)
    items.join()


def joins_what_needs_its_lock() -> None:
    beats()
    lock = threading.Lock()

    def run() -> None:
        time.sleep(0.3)
        with lock:
            pass

    thread = threading.Thread(target=run)
    thread.start()
    with lock:
        thread.join()


PROGRAMS = {
    "lock_taken_twice": lock_taken_twice,
    "two_orders": two_orders,
    "queue_never_done": queue_never_done,
    "joins_what_needs_its_lock": joins_what_needs_its_lock,
}
