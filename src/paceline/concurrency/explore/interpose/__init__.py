"""The controlled forms of `threading`, `queue`, `concurrent.futures`, `time` and `asyncio`.

They take the place of the names in those modules before the program's own code is read, so that `from threading import
Lock` gets the controlled one. What a library creates is left alone: a name decides by the code that calls it.
"""

from __future__ import annotations

import threading

from paceline.concurrency.explore.interpose import chance, event_loop, locks, processes, threads
from paceline.concurrency.explore.interpose.locks import PRIMITIVES
from paceline.concurrency.explore.interpose.threads import Thread, Timer


def install() -> None:
    """Put the controlled forms in place, for the rest of this process."""
    for each in (*PRIMITIVES, Thread, Timer):
        setattr(threading, each.__name__, each)
    for module in (locks, threads, chance, event_loop, processes):
        module.install()
