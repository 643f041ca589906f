"""The stale-synchronous gate: no worker may be more than `bound` batches ahead of the slowest.

Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NeurIPS 2013 (SSP). A
worker's clock counts the batches it has finished; it may start another while

    its clock - the slowest living worker's clock  <=  bound

so the computations that run at one time are at most `bound` clocks apart. With bound 0 the workers keep step, but each
still pushes its own batch: that equals a synchronous plan only for plain SGD with the sizes and learning rates matched.
Not to be confused with a bound on staleness, which counts updates: P workers that are s clocks apart may make up to
(P - 1)(2s + 1) of them between a pull and its push.

A worker that died has no clock, so no worker waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.algorithms.state import State

DEAD = -1


@dataclass(frozen=True)
class StaleSynchronous:
    """Opens for workers within `bound` batches of the slowest living one.

    state: workers | a clock per worker, or DEAD
    """

    bound: int = 3

    def ints(self, workers: int) -> int:
        return 1 + workers

    def init(self, state: State, at: int, workers: int) -> None:
        state[at] = workers
        for worker in range(workers):
            state[at + 1 + worker] = 0

    def open(self, state: State, at: int, worker: int) -> bool:
        clocks = state[at + 1 : at + 1 + state[at]]
        return clocks[worker] - min(clock for clock in clocks if clock != DEAD) <= self.bound

    def finished(self, state: State, at: int, worker: int) -> None:
        state[at + 1 + worker] += 1

    def died(self, state: State, at: int, worker: int) -> None:
        state[at + 1 + worker] = DEAD

    def joined(self, state: State, at: int, worker: int) -> None:
        """Start as far as the slowest worker, so that no worker waits for what the new one has not done."""
        living = [clock for clock in state[at + 1 : at + 1 + state[at]] if clock != DEAD]
        state[at + 1 + worker] = min(living, default=0)
