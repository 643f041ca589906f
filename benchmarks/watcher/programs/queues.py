"""Queues between threads that nobody fills, empties or completes."""

from __future__ import annotations

import queue
import threading


def in_thread(run: object) -> None:
    thread = threading.Thread(target=run)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def none_left_for_the_last() -> None:
    """Two consumers, one sentinel."""
    items: queue.Queue[None] = queue.Queue()
    consumers = [threading.Thread(target=items.get) for _ in range(2)]
    for each in consumers:
        each.start()
    items.put(None)
    for each in consumers:
        each.join()


def full() -> None:
    items: queue.Queue[int] = queue.Queue(maxsize=1)
    in_thread(lambda: [items.put(number) for number in range(3)])


def not_done() -> None:
    items: queue.Queue[int] = queue.Queue()
    items.put(1)
    items.get()
    items.join()


PROGRAMS = {"none_left_for_the_last": none_left_for_the_last, "full": full, "not_done": not_done}
