"""A worker that ends at a bad item without task_done(), while main waits in join()."""

import queue
import sys
import threading

REPAIRED = "repaired" in sys.argv
jobs = queue.Queue(maxsize=2)
results = []


def work():
    while (item := jobs.get()) is not None:
        try:
            if item % 7 == 0 and not REPAIRED:
                return
            results.append(10 / item if item else 0)
        finally:
            if item % 7 or REPAIRED:
                jobs.task_done()
    jobs.task_done()


def main():
    workers = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    for item in (1, 2, 7, 3):
        jobs.put(item)
    for _ in workers:
        jobs.put(None)
    jobs.join()
    assert len(results) == 4


if __name__ == "__main__":
    main()
