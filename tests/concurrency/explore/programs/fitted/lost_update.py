"""A counter that two threads increase."""

import sys
import threading

REPAIRED = "repaired" in sys.argv


class Counter:
    def __init__(self):
        self.n = 0
        self.lock = threading.Lock()

    def add(self):
        if REPAIRED:
            with self.lock:
                self.n += 1
        else:
            self.n += 1


counter = Counter()
threads = [threading.Thread(target=counter.add) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert counter.n == 2, f"{counter.n} of 2"
