"""Gates decide which workers may start another batch.

The desk calls `open` before each lease, and reports every finished batch, death and join.

One file per published method. A gate keeps its integers at `state[at:]`; it never sees a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paceline.algorithms.state import State


class Gate(Protocol):
    """The interface of every gate."""

    def ints(self, workers: int) -> int:
        """Return the number of integers that the gate keeps."""

    def init(self, state: State, at: int, workers: int) -> None: ...

    def open(self, state: State, at: int, worker: int) -> bool:
        """Return whether this worker may start another batch now."""

    def finished(self, state: State, at: int, worker: int) -> None: ...

    def died(self, state: State, at: int, worker: int) -> None: ...

    def joined(self, state: State, at: int, worker: int) -> None:
        """Another worker takes the place of a dead one."""
