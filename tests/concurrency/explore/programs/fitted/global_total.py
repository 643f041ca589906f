"""A global total, increased by the tasks of a pool."""

import sys
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock

REPAIRED = "repaired" in sys.argv
total = 0
lock = Lock()


def add(amount):
    global total
    if REPAIRED:
        with lock:
            total += amount
    else:
        before = total
        total = before + amount


with ThreadPoolExecutor() as pool:
    wait([pool.submit(add, amount) for amount in (1, 2)])
assert total == 3, total
