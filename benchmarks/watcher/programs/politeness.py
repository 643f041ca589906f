"""Threads that are always busy with giving way to each other."""

from __future__ import annotations

import threading
import time


def give_way() -> None:
    """Each thread holds its lock, fails to get the other's, lets go and tries again, in step."""
    locks = [threading.Lock(), threading.Lock()]

    def run(number: int) -> None:
        while True:
            with locks[number]:
                time.sleep(0.001)
                if locks[1 - number].acquire(blocking=False):
                    locks[1 - number].release()
            time.sleep(0)

    for number in range(2):
        threading.Thread(target=run, args=(number,)).start()


def spin() -> None:
    """Two threads spin until the other one has set its flag."""
    flags = [False, False]

    def run(number: int) -> None:
        while not flags[1 - number]:
            time.sleep(0)
        flags[number] = True

    for number in range(2):
        threading.Thread(target=run, args=(number,)).start()


PROGRAMS = {"give_way": give_way, "spin": spin}
