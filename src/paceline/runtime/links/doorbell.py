"""A doorbell: how a process that waits for something in shared memory is woken."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as now
from typing import TYPE_CHECKING

from paceline.runtime.links import futex

if TYPE_CHECKING:
    from paceline.runtime.links.memory import Memory

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
        self.address = futex.address_of(cell)
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
        futex.wake(self._address)

    def nap(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Sleep until rung, for at most `seconds`; not at all if `ready()`, which is asked once more."""
        cell = self._cell
        # Raised before the last look at `ready`: whichever rank makes it ready after that look sees the flag and rings.
        cell[ASLEEP] = 1
        # Read before that look, too: a ring in between changes the integer, and the kernel then refuses the sleep.
        rings = cell[RINGS]
        try:
            if not ready():
                futex.sleep(self._address, rings, seconds)
        finally:
            cell[ASLEEP] = 0
