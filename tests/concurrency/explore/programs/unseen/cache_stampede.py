"""A cache that must compute a value once, although several threads ask for it."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import RLock

REPAIRED = "repaired" in sys.argv


class Cache:
    def __init__(self):
        self.values = {}
        self.computed = 0
        self.lock = RLock()

    def get(self, key):
        if REPAIRED:
            with self.lock:
                return self._get(key)
        return self._get(key)

    def _get(self, key):
        if key not in self.values:
            with self.lock:
                self.computed += 1
                self.values[key] = key * 2
        return self.values[key]


cache = Cache()
with ThreadPoolExecutor(max_workers=2) as pool:
    results = list(pool.map(cache.get, [21, 21]))
assert results == [42, 42]
assert cache.computed == 1, f"computed {cache.computed} times"
