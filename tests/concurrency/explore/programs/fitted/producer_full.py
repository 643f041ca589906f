"""A bounded queue is filled while the lock is held that the consumer needs."""

import queue
import sys
import threading

REPAIRED = "repaired" in sys.argv
items, lock, taken = queue.Queue(1), threading.Lock(), []


def produce():
    for number in range(2):
        if REPAIRED:
            items.put(number)
        else:
            with lock:
                items.put(number)


def consume():
    for _ in range(2):
        with lock:
            taken.append(len(taken))
        items.get()


threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
