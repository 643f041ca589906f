"""The memory that a table takes: what each worker holds, walked through in the order of its work.

always           weights in all their versions, the optimizer's state
in an update     gradients, from the first backward to the update
in flight        what a forward keeps for its backward, for each micro-batch between the two
for a moment     what forward, backward and update need while they run, over what they leave behind
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.algorithms.schedules import BACKWARD, FORWARD, INPUTS, UPDATE, WEIGHTS, Table


class Back(NamedTuple):
    """Bytes of a backward, over those before it, without what its forward left."""

    most: int  # while it runs; where it comes in two halves: while the first runs
    left: int  # after it: gradients of weights; of the first half: also what the second needs
    most_later: int = 0  # in the second half
    left_later: int = 0  # after that


class Weighed(NamedTuple):
    """Bytes of one stage and one micro-batch."""

    always: int
    kept: int  # what a forward leaves, with what it has taken
    forward: int  # most while it runs, over what was there before
    first: Back  # of the first micro-batch of an update, which makes gradients
    later: Back  # of the others, which add to them
    update: int  # most while it runs, over what was there before

    @property
    def gradients(self) -> int:
        """The bytes of gradients, which are held from the first backward to the update."""
        return self.first.left_later or self.first.left


def peaks(table: Table, stages: Sequence[Weighed]) -> list[int]:
    """Return the most bytes that each worker holds at one time."""
    return [_peak(table, worker, stages) for worker in range(table.workers)]


def _peak(table: Table, worker: int, stages: Sequence[Weighed]) -> int:
    mine = [number for number, holder in enumerate(table.stage_to_worker) if holder == worker]
    resident = most = sum(stages[number].always for number in mine)
    begun = set[tuple[int, str]]()  # (stage, which half), since the last update
    for work in table.lines[worker]:
        weighed = stages[work.stage]
        back = weighed.later if (work.stage, work.what) in begun else weighed.first
        moment = delta = 0
        if work.what == FORWARD:
            moment, delta = weighed.forward, weighed.kept
        elif work.what in (BACKWARD, INPUTS):
            moment, delta = back.most - weighed.kept, back.left - weighed.kept
        elif work.what == WEIGHTS:
            moment, delta = back.most_later - back.left, back.left_later - back.left
        elif work.what == UPDATE:
            moment, delta = weighed.update, -weighed.gradients
            begun -= {(work.stage, what) for what in (BACKWARD, INPUTS, WEIGHTS)}
        most = max(most, resident + moment, resident + delta)
        resident += delta
        begun.add((work.stage, work.what))
    return most
