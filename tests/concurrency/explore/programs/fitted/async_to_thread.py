"""A counter that the loop and a thread of to_thread change."""

import asyncio
import sys
import threading

REPAIRED = "repaired" in sys.argv


class Stats:
    def __init__(self):
        self.seen = 0
        self.lock = threading.Lock()

    def add(self):
        if REPAIRED:
            with self.lock:
                self.seen = self.seen + 1
        else:
            self.seen = self.seen + 1


async def main():
    stats = Stats()
    task = asyncio.create_task(asyncio.to_thread(stats.add))
    await asyncio.sleep(0)
    stats.add()
    await task
    assert stats.seen == 2, stats.seen


asyncio.run(main())
