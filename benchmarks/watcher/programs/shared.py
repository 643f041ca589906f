"""Processes that wait for each other's locks in shared memory."""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from typing import Any

FORK = mp.get_context("fork")


def start(*runs: tuple[Any, ...]) -> None:
    children = [FORK.Process(target=run, args=arguments) for run, *arguments in runs]
    for child in children:
        child.start()
    for child in children:
        child.join()


def takes(first: Any, second: Any) -> None:
    with first:
        time.sleep(0.5)
        with second:
            pass


def circle() -> None:
    a, b = FORK.Lock(), FORK.Lock()
    start((takes, a, b), (takes, b, a))


def dies_holding(lock: Any) -> None:
    lock.acquire()
    os._exit(1)


def held_by_the_dead() -> None:
    lock = FORK.Lock()
    start((dies_holding, lock))
    start((takes, lock, lock))


def one_missing() -> None:
    barrier = FORK.Barrier(3)
    start((barrier.wait,), (barrier.wait,))


PROGRAMS = {"circle": circle, "held_by_the_dead": held_by_the_dead, "one_missing": one_missing}
