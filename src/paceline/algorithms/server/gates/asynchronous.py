"""The asynchronous gate: always open.

Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012 (Downpour SGD); the same gate is used by Hogwild
and, under the name "total asynchronous parallel", in Petuum. Staleness is not bounded: with P equal workers it is about
P - 1, with unequal ones a slow worker's may be anything. Not to be confused with stale-synchronous (a bound), nor with
gradient accumulation (no staleness at all).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.algorithms.state import State


@dataclass(frozen=True)
class Asynchronous:
    """Opens for every worker at any time."""

    def ints(self, workers: int) -> int:
        return 0

    def init(self, state: State, at: int, workers: int) -> None:
        pass

    def open(self, state: State, at: int, worker: int) -> bool:
        return True

    def finished(self, state: State, at: int, worker: int) -> None:
        pass

    def died(self, state: State, at: int, worker: int) -> None:
        pass

    def joined(self, state: State, at: int, worker: int) -> None:
        pass
