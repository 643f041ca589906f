"""Gates: who may go on? A gate is asked before each lease and told of every finished batch and death.

One file per published method. A gate keeps its integers at `state[at:]`; it never sees a clock.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Protocol


class Gate(Protocol):
    def ints(self, workers: int) -> int:
        """How many integers it keeps."""

    def init(self, state: MutableSequence[int], at: int, workers: int) -> None: ...

    def open(self, state: MutableSequence[int], at: int, worker: int) -> bool:
        """May this worker start another batch now?"""

    def finished(self, state: MutableSequence[int], at: int, worker: int) -> None: ...

    def died(self, state: MutableSequence[int], at: int, worker: int) -> None: ...
