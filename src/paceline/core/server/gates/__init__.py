"""Gates: who may go on? A gate is asked before each lease and told of every finished batch and death.

One file per published method. A gate keeps its integers at `state[at:]`; it never sees a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paceline.core.state import State


class Gate(Protocol):
    def ints(self, workers: int) -> int:
        """How many integers it keeps."""

    def init(self, state: State, at: int, workers: int) -> None: ...

    def open(self, state: State, at: int, worker: int) -> bool:
        """May this worker start another batch now?"""

    def finished(self, state: State, at: int, worker: int) -> None: ...

    def died(self, state: State, at: int, worker: int) -> None: ...

    def joined(self, state: State, at: int, worker: int) -> None:
        """Another worker takes the place of a dead one."""
