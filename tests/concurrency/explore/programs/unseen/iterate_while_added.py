"""Listeners are notified while another thread adds one."""

import sys
import threading

REPAIRED = "repaired" in sys.argv


class Bus:
    def __init__(self):
        self.listeners = {}
        self.lock = threading.Lock()

    def add(self, name, listener):
        with self.lock:
            self.listeners[name] = listener

    def notify(self, event):
        if REPAIRED:
            with self.lock:
                listeners = list(self.listeners.values())
        else:
            listeners = self.listeners.values()
        for listener in listeners:
            listener(event)


bus, events = Bus(), []
bus.add("first", events.append)
bus.add("second", events.append)
adder = threading.Thread(target=bus.add, args=("third", events.append))
adder.start()
bus.notify("hello")
adder.join()
assert len(events) >= 2
