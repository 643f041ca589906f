"""Programs that sleep most of the time, and wake by a clock."""

from __future__ import annotations

import asyncio
import os
import queue
import sched
import signal
import subprocess
import threading
import time


def cron() -> None:
    while True:
        time.sleep(20)
        subprocess.run(["true"])


def scheduler() -> None:
    plan = sched.scheduler()
    for number in range(100):
        plan.enter(15 * number, 1, os.getpid)
    plan.run()


def timer_threads() -> None:
    done = threading.Event()
    threading.Timer(3600, done.set).start()
    done.wait()


def alarm() -> None:
    signal.signal(signal.SIGALRM, lambda *_: signal.alarm(12))
    signal.alarm(12)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def periodic_task() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(11)

    asyncio.run(main())


def rate_limited() -> None:
    """A producer every 13 seconds; consumers wait in between."""
    items: queue.Queue[int] = queue.Queue()

    def produce() -> None:
        while True:
            time.sleep(13)
            items.put(1)

    threading.Thread(target=produce).start()
    while True:
        items.get()


def lock_held_while_sleeping() -> None:
    lock = threading.Lock()

    def hold() -> None:
        with lock:
            time.sleep(600)

    threading.Thread(target=hold).start()
    time.sleep(0.3)
    with lock:
        pass


def locks_in_a_line() -> None:
    """Each of four threads holds a lock and waits for the next one's; the last one sleeps."""
    locks = [threading.Lock() for _ in range(5)]

    def run(number: int) -> None:
        with locks[number]:
            time.sleep(0.3)
            if number == 4:
                time.sleep(600)
            with locks[(number + 1) % 5]:
                pass

    threads = [threading.Thread(target=run, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def waits_in_steps() -> None:
    stop = threading.Event()
    while not stop.wait(9):
        pass


def asks_with_a_timeout() -> None:
    """Both try the other's lock for a second, give up their own, and try again: this ends by chance."""
    first, second = threading.Lock(), threading.Lock()

    def run(mine: threading.Lock, other: threading.Lock, pause: float) -> None:
        while True:
            with mine:
                time.sleep(pause)
                if other.acquire(timeout=1):
                    other.release()
            time.sleep(pause)

    threading.Thread(target=run, args=(first, second, 0.7)).start()
    run(second, first, 0.4)


PROGRAMS = {
    each.__name__: each
    for each in (
        cron, scheduler, timer_threads, alarm, periodic_task, rate_limited, lock_held_while_sleeping, locks_in_a_line,
        waits_in_steps, asks_with_a_timeout,
    )
}  # fmt: skip
