"""Where the versions of a shard lie: one room for each worker, and a spare.

A worker computes with the version in its own room. The next version is made where nobody looks: in the pusher's own
room, since its gradient is ready and it will not compute with the old version again; in the spare room when the
newest version lies in its own, because it must stay whole until the next one is.

    push by     rooms 0 1 2 | newest    makes the next in
    worker 0          a b .   b (1)     its own room 0, from 1
    worker 0          c b .   c (0)     the spare room 2, from 0; room 0 is then the spare

So nothing has to be undone when a worker is killed half-way: the room it was changing is nobody's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.state import State


class Rooms:
    """state, from `at`: the newest version's room | the spare room | the room of each worker"""

    def __init__(self, workers: int, at: int = 0) -> None:
        self.workers, self.at = workers, at
        self.count, self.ints = workers + 1, workers + 2

    def init(self, state: State) -> None:
        """Version 0 lies in every room."""
        state[self.at] = state[self.at + 1] = self.workers
        for worker in range(self.workers):
            state[self.at + 2 + worker] = worker

    def move(self, state: State, worker: int) -> tuple[int, int]:
        """(the newest version's room, the room for this worker's next version), which is then newest and its own."""
        at, own = self.at, self.at + 2 + worker
        source, target = state[at], state[own]
        if target == source:
            target = state[at + 1]
            state[at + 1] = source
        state[at] = state[own] = target
        return source, target

    def fetch(self, state: State, worker: int) -> tuple[int, int]:
        """(the newest version's room, the room for this worker's copy of it); the same where it is there already."""
        return state[self.at], state[self.at + 2 + worker]

    def of(self, state: State, worker: int) -> int:
        return state[self.at + 2 + worker]

    def newest(self, state: State) -> int:
        return state[self.at]
