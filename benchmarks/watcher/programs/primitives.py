"""The primitives of threading, used in ways that leave somebody waiting."""

from __future__ import annotations

import queue
import threading
import time


def party_missing() -> None:
    barrier = threading.Barrier(3)
    threading.Thread(target=barrier.wait).start()
    barrier.wait()


def permits_leak() -> None:
    permits = threading.Semaphore(2)

    def run() -> None:
        permits.acquire()

    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    permits.acquire()


def notified_too_early() -> None:
    condition = threading.Condition()

    def notify() -> None:
        with condition:
            condition.notify_all()

    thread = threading.Thread(target=notify)
    thread.start()
    thread.join()
    with condition:
        condition.wait()


def event_never_set() -> None:
    event = threading.Event()

    def fails() -> None:
        raise SystemExit

    threading.Thread(target=fails).start()
    event.wait()


def joined_by_each_other() -> None:
    threads: list[threading.Thread] = []

    def run(other: int) -> None:
        time.sleep(0.3)
        threads[other].join()

    threads += [threading.Thread(target=run, args=(1 - number,)) for number in range(2)]
    for thread in threads:
        thread.start()


def lock_and_event() -> None:
    """One waits for an event with the lock that the other needs to set it."""
    lock, event = threading.Lock(), threading.Event()

    def sets() -> None:
        time.sleep(0.3)
        with lock:
            event.set()

    threading.Thread(target=sets).start()
    with lock:
        event.wait()


def philosophers() -> None:
    forks = [threading.Lock() for _ in range(5)]

    def dine(number: int) -> None:
        left, right = forks[number], forks[(number + 1) % 5]
        left.acquire()
        time.sleep(0.3)
        right.acquire()
        right.release()
        left.release()

    threads = [threading.Thread(target=dine, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def worker_has_failed() -> None:
    """The consumer dies of an exception, and the producer waits for room."""
    items: queue.Queue[int] = queue.Queue(1)

    def consume() -> None:
        items.get()
        raise SystemExit

    threading.Thread(target=consume).start()
    while True:
        items.put(1)


PROGRAMS = {
    "party_missing": party_missing,
    "permits_leak": permits_leak,
    "notified_too_early": notified_too_early,
    "event_never_set": event_never_set,
    "joined_by_each_other": joined_by_each_other,
    "lock_and_event": lock_and_event,
    "philosophers": philosophers,
    "worker_has_failed": worker_has_failed,
}
