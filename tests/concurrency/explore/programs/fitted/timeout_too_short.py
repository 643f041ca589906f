"""A wait whose time-out is taken for the answer."""

import sys
import threading

REPAIRED = "repaired" in sys.argv
ready, answers = threading.Event(), []


def compute():
    answers.append(42)
    ready.set()


thread = threading.Thread(target=compute)
thread.start()
if REPAIRED:
    while not ready.wait(timeout=5):
        pass
else:
    ready.wait(timeout=5)
assert answers == [42]
thread.join()
