"""A consumer that tests a flag outside the lock of its condition, so that the notification may come too early."""

import sys
from threading import Condition, Thread

REPAIRED = "repaired" in sys.argv


class Box:
    def __init__(self):
        self.filled = Condition()
        self.item = None

    def put(self, item):
        with self.filled:
            self.item = item
            self.filled.notify()

    def take(self):
        if REPAIRED:
            with self.filled:
                self.filled.wait_for(lambda: self.item is not None)
        elif self.item is None:
            with self.filled:
                self.filled.wait()
        return self.item


if __name__ == "__main__":
    box, taken = Box(), []
    consumer = Thread(target=lambda: taken.append(box.take()), name="consumer")
    consumer.start()
    box.put("apple")
    consumer.join()
    assert taken == ["apple"]
