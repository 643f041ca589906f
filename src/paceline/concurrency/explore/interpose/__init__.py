"""The controlled forms of `threading`, `queue`, `concurrent.futures`, `time` and `asyncio`.

They take the place of the names in those modules before the program's own code is read, so that `from threading import
Lock` gets the controlled one. What a library creates is left alone: a name decides by the code that calls it.
"""

from __future__ import annotations

from paceline.concurrency.explore.interpose import clock, event_loop, futures, locks, queues, synchronisation, threads


def install() -> None:
    """Put the controlled forms in place, for the rest of this process."""
    locks.install()
    synchronisation.install()
    threads.install()
    queues.install()
    futures.install()
    clock.install()
    event_loop.install()
