"""A thread that is started twice, because start() tests a flag that the thread sets only later."""

import sys
import threading
import time

REPAIRED = "repaired" in sys.argv


class Heartbeat:
    def __init__(self):
        self.thread = None
        self.lock = threading.Lock()
        self.started = 0
        self.stopped = threading.Event()

    def ensure(self):
        if REPAIRED:
            with self.lock:
                self._ensure()
        else:
            self._ensure()

    def _ensure(self):
        if self.thread is None:
            self.thread = threading.Thread(target=self.beat, daemon=True)
            self.thread.start()

    def beat(self):
        with self.lock:
            self.started += 1
        while not self.stopped.wait(0.5):
            pass


heart = Heartbeat()
callers = [threading.Thread(target=heart.ensure) for _ in range(2)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
time.sleep(2)
heart.stopped.set()
assert heart.started <= 1, "two hearts"
