"""A pool and its log take each other's locks."""

import sys
from threading import Lock, Thread

REPAIRED = "repaired" in sys.argv


class Log:
    def __init__(self, pool):
        self.lock, self.pool, self.lines = Lock(), pool, []

    def say(self, line):
        with self.lock:
            self.lines.append(line)

    def flush(self):
        if REPAIRED:
            size = self.pool.size()
            with self.lock:
                self.lines.append(str(size))
        else:
            with self.lock:
                self.lines.append(str(self.pool.size()))


class Pool:
    def __init__(self):
        self.lock, self.items, self.log = Lock(), [], Log(self)

    def put(self, item):
        with self.lock:
            self.items.append(item)
            self.log.say(f"put {item}")

    def size(self):
        with self.lock:
            return len(self.items)


def main():
    pool = Pool()
    flusher = Thread(target=pool.log.flush)
    flusher.start()
    pool.put(1)
    flusher.join()


if __name__ == "__main__":
    main()
