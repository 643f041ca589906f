"""The gate with backup workers: a round ends when the first n of all workers have pushed their gradient.

Chen et al., "Revisiting distributed synchronous SGD", ICLR workshop 2016. Of n + b workers that compute from the same
parameters the n fastest make the update, so that up to b stragglers delay no worker. A worker that has pushed waits for
the end of the round; one that is too late pulls and computes its share again (`algorithms.server.gathering`), so no
gradient is stale and, unlike in the paper, no sample is left out. With b = 0 it is the synchronous plan.

If too few workers are left to end the round, as after a death, workers that have pushed may push again. Not to be
confused with stale-synchronous, where the slow workers are waited for and every gradient counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.algorithms.state import State

WORKERS, ROUND, FINISHED, FREE = 0, 1, 2, 3
DEAD = -1


@dataclass(frozen=True)
class Backup:
    """Opens for a worker that has not pushed in this round, or if the round lacks workers.

    state: workers | the round | finished in it | the round that each worker is free for, or DEAD
    """

    needed: int

    def ints(self, workers: int) -> int:
        return FREE + workers

    def init(self, state: State, at: int, workers: int) -> None:
        state[at + WORKERS] = workers
        for cell in range(at + ROUND, at + FREE + workers):
            state[cell] = 0

    def open(self, state: State, at: int, worker: int) -> bool:
        number, free = state[at + ROUND], state[at + FREE : at + FREE + state[at + WORKERS]]
        if free[worker] <= number:
            return True
        to_come = sum(DEAD < other <= number for other in free)
        return state[at + FINISHED] + to_come < self.needed

    def finished(self, state: State, at: int, worker: int) -> None:
        state[at + FREE + worker] = state[at + ROUND] + 1
        state[at + FINISHED] += 1
        if state[at + FINISHED] == self.needed:
            state[at + ROUND] += 1
            state[at + FINISHED] = 0

    def died(self, state: State, at: int, worker: int) -> None:
        state[at + FREE + worker] = DEAD

    def joined(self, state: State, at: int, worker: int) -> None:
        state[at + FREE + worker] = state[at + ROUND]
