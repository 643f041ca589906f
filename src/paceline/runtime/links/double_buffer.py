"""Integers in shared memory that change all at once or not at all, even if the process that changes them is killed."""

from __future__ import annotations

from paceline.runtime.links import futex
from paceline.runtime.links.memory import Memory


class DoubleBuffer:
    """Integers that are kept twice: `begin` returns a copy to change, and `commit` makes it the valid one.

    Every method is called under the lock that guards the integers. The commit is one aligned store of eight bytes, so
    a process that is killed before it has changed nothing.
    """

    def __init__(self, memory: Memory, count: int) -> None:
        #: Which of the two copies is valid: 0 or 1.
        self._flip = memory.ints(1)
        self._copies = (memory.ints(count), memory.ints(count))

    @property
    def addresses(self) -> tuple[int, int, int]:
        """The addresses of the integer that says which copy is valid, and of both copies, for generated code."""
        return futex.address_of(self._flip), futex.address_of(self._copies[0]), futex.address_of(self._copies[1])

    @property
    def current(self) -> memoryview:
        """The valid copy."""
        return self._copies[self._flip[0]]

    def begin(self) -> memoryview:
        """Return the other copy, filled from the valid one."""
        valid = self._flip[0]
        draft = self._copies[1 - valid]
        # The whole copy: an owner that was killed may have left anything in it.
        draft[:] = self._copies[valid]
        return draft

    def commit(self) -> None:
        """Make the other copy the valid one."""
        self._flip[0] = 1 - self._flip[0]
