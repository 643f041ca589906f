"""How a rank waits for another: it spins, sleeps on an integer in shared memory (a futex), and is woken by a bell.

Most waits on one machine are shorter than a wake-up, so spinning comes first. Every wait ends: before each nap the one
who waits is asked how long to sleep, and raises where waiting is of no use any longer.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, NamedTuple

from paceline.errors import WaitedTooLong

if TYPE_CHECKING:
    from paceline.runtime.links.memory import Memory

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


# The kernel's futex: a process sleeps on an integer in shared memory until another one wakes it.
#
# It needs no descriptor, so whatever lies in shared memory can be slept on by every process that maps it. A round
# trip of two sleeping processes costs the same as with an eventfd.

# The C library has no function for it, and the number of the system call depends on the processor.
SYSCALL = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
WAIT, WAKE, ALL = 0, 1, 2**31 - 1
SHORT_NAP = 100e-6  # seconds; where the number is not known, a sleeper looks again that often


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_ARGUMENTS = (
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.POINTER(Timespec),
    ctypes.c_void_p,
    ctypes.c_int,
)
# Waiting releases the interpreter's lock, for the other threads. Waking does not wait, and is cheaper with the lock.
_wait = ctypes.CDLL(None).syscall
_wake = ctypes.PyDLL(None).syscall
_wait.argtypes = _wake.argtypes = _ARGUMENTS
_wait.restype = _wake.restype = ctypes.c_long


def address_of(place: memoryview) -> int:
    """The address of a part of shared memory, valid as long as the memory is mapped."""
    return ctypes.addressof(ctypes.c_char.from_buffer(place))


def sleep(address: int, expected: int, seconds: float) -> None:
    """Sleep until woken, for at most `seconds`; not at all if the integer is no longer what was `seen`."""
    if SYSCALL is None:
        time.sleep(min(seconds, SHORT_NAP))
        return
    limit = Timespec(int(seconds), int(seconds % 1 * 1e9))
    _wait(SYSCALL, address, WAIT, expected & 0xFFFFFFFF, ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    """Wake every process that sleeps on the integer."""
    if SYSCALL is not None:
        _wake(SYSCALL, address, WAKE, ALL, None, None, 0)


# A doorbell: how a process that waits for something in shared memory is woken.

ASLEEP, RINGS = 0, 1
INTS = 2


class Doorbell:
    """A flag that the owner sleeps, and an integer that changes when it is rung. Ringing an awake owner costs nothing.

    The owner raises the flag, looks once more for what it waits for, and sleeps only if the integer has not changed. A
    ring before the flag was raised is lost: it costs one nap, since no sleep is longer.
    """

    def __init__(self, cell: memoryview) -> None:
        #: Two integers of shared memory: ASLEEP is 1 while the owner sleeps; RINGS is different after each ring.
        self._cell = cell
        #: The same flag alone: where a microsecond counts, it is looked at before `ring` is called.
        self.flag = cell[ASLEEP : ASLEEP + 1]
        #: Of both integers, for generated code, which sleeps and rings in the same way.
        self.address = address_of(cell)
        self._address = self.address + 8 * RINGS

    @classmethod
    def of(cls, memory: Memory) -> Doorbell:
        """Take a doorbell's place in a memory."""
        return cls(memory.ints(INTS))

    @property
    def asleep(self) -> bool:
        """Whether the owner sleeps."""
        return bool(self._cell[ASLEEP])

    def ring(self) -> None:
        """Wake the owner if it sleeps."""
        if self._cell[ASLEEP]:
            self.wake()

    def wake(self) -> None:
        """Wake whatever sleeps on this doorbell, also another thread of this process."""
        # The time, since several processes may ring at once: what one writes must differ from what the other did.
        self._cell[RINGS] = now()
        wake(self._address)

    def nap(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Sleep until rung, for at most `seconds`; not at all if `ready()`, which is asked once more."""
        cell = self._cell
        # Raised before the last look at `ready`: whichever rank makes it ready after that look sees the flag and rings.
        cell[ASLEEP] = 1
        # Read before that look, too: a ring in between changes the integer, and the kernel then refuses the sleep.
        rings = cell[RINGS]
        try:
            if not ready():
                sleep(self._address, rings, seconds)
        finally:
            cell[ASLEEP] = 0
