"""How a rank waits for another: it spins briefly, then sleeps, and looks again after every nap.

Most waits on one machine are shorter than a wake-up, so spinning comes first. Every wait ends: before each nap the one
who waits is asked how long to sleep, and raises where waiting is of no use any longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from time import perf_counter_ns as now
from typing import NamedTuple

from paceline.errors import WaitedTooLong
from paceline.runtime.links.doorbell import Doorbell

SPIN_SECONDS = 50e-6
NAP_SECONDS = 0.002  # a lost wake-up costs at most this
LONGEST_SLEEP = 0.05  # seconds between two looks where no doorbell is rung


class Spin(NamedTuple):
    """How long to look again and again before the first sleep."""

    nanoseconds: int
    alone: int  # of these, the first so many without giving the core to other processes


class Cancelled(Exception):
    """The run was cancelled: the worker ends without a message of its own."""


def wait(ready: Callable[[], bool], doorbell: Doorbell | None, spin: Spin, nap: Callable[[int], float]) -> int:
    """Return when `ready()`, with the nanoseconds that it took.

    Args:
        ready: asked again and again.
        doorbell: this rank's own, rung by the rank that makes it ready; None where no rank rings.
        spin: how long to ask before sleeping.
        nap: called before each sleep with the nanoseconds waited so far. Returns the seconds to sleep at most; raises
            where it is of no use to wait any longer.
    """
    start = now()
    stop, crowded = start + spin.nanoseconds, start + spin.alone
    while not ready():
        moment = now()
        if moment >= stop:
            break
        if moment >= crowded:
            # The rank that is waited for may need this very core.
            os.sched_yield()
    else:
        return now() - start
    while not ready():
        seconds = nap(now() - start)
        if doorbell is None:
            time.sleep(seconds)
        else:
            doorbell.nap(seconds, ready)
    return now() - start


class Waiter:
    """How one rank of a run waits: never past the deadline, and never after the run was cancelled."""

    def __init__(
        self,
        worker: int,
        doorbell: Doorbell | None,
        aborted: Callable[[], bool],
        deadline: float,
        where: Callable[[], str],
        crowded: bool = False,
    ) -> None:
        self.worker, self.doorbell, self.deadline = worker, doorbell, deadline
        # With more workers than cores, the one that is waited for may need this core.
        nanoseconds = 0 if crowded else int(SPIN_SECONDS * 1e9)
        #: How long this rank spins before it sleeps.
        self.spin = Spin(nanoseconds, nanoseconds)
        self._aborted, self._where = aborted, where

    def until(self, ready: Callable[[], bool], whom: Callable[[], str], rung: bool = True) -> int:
        """Return when `ready()`, with the nanoseconds that it took.

        Args:
            ready: asked again and again.
            whom: for the message, what is waited for.
            rung: whether the rank that makes it ready rings this rank's doorbell.
        """
        rung = rung and self.doorbell is not None

        def nap(waited: int) -> float:
            # Asked again after the flag: what became ready before the run was cancelled is still taken.
            if self._aborted() and not ready():
                raise Cancelled
            if waited > self.deadline * 1e9:
                raise self.too_long(whom())
            # Without a doorbell, an eighth of the time waited so far: looking costs little of whatever the wait is.
            return NAP_SECONDS if rung else min(max(SPIN_SECONDS, waited / 8e9), LONGEST_SLEEP)

        return wait(ready, self.doorbell if rung else None, self.spin, nap)

    def too_long(self, whom: str) -> WaitedTooLong:
        """Return the error of a wait that has reached the deadline."""
        return WaitedTooLong(self.worker, whom, self.deadline, self._where())
