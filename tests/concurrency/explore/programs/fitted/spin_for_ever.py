"""Two polite threads that each give way to the other, for ever."""

import sys
import threading
import time

REPAIRED = "repaired" in sys.argv


class Side:
    def __init__(self):
        self.wants = False


def cross(mine, other, first):
    mine.wants = True
    while other.wants:
        if not (REPAIRED and first):
            mine.wants = False
            time.sleep(0.01)
            if REPAIRED:
                while other.wants:
                    time.sleep(0.01)
            mine.wants = True
        else:
            time.sleep(0.01)
    if REPAIRED:
        mine.wants = False


a, b = Side(), Side()
threads = [threading.Thread(target=cross, args=each) for each in ((a, b, True), (b, a, False))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
