"""An event is cleared after the work was looked for, so that a new item may go unnoticed."""

import collections
import sys
import threading

REPAIRED = "repaired" in sys.argv


class Mailbox:
    def __init__(self):
        self.items = collections.deque()
        self.arrived = threading.Event()

    def send(self, item):
        self.items.append(item)
        self.arrived.set()

    def receive(self):
        while True:
            if REPAIRED:
                self.arrived.clear()
            if self.items:
                return self.items.popleft()
            if not REPAIRED:
                self.arrived.clear()
            self.arrived.wait()


box, got = Mailbox(), []
reader = threading.Thread(target=lambda: got.append(box.receive()))
reader.start()
box.send("a")
reader.join()
assert got == ["a"]
