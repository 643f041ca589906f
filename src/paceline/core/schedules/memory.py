"""How much memory a table takes: what lies with each worker, walked through in the order of its work.

always           weights in all their versions, what the optimizer remembers
in an update     gradients, from the first backward to the update
in flight        what a forward keeps for its backward, for each micro-batch between the two
for a moment     what forward, backward and update need while they go on, over what they leave behind
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.core.schedules import BACKWARD, FORWARD, INPUTS, UPDATE, WEIGHTS, Table


class Weighed(NamedTuple):
    """Bytes of one stage and one micro-batch."""

    always: int
    gradients: int
    kept: int  # what a forward leaves, with what it has taken
    forward: int  # most while it goes on, over what was there before
    backward: int  # the same, over what was there without what its forward left
    update: int  # the same
    owed: int = 0  # where backward comes in two halves: what lies between them
    pay: int = 0  # most in the second half, over what was there without what is owed


def peaks(table: Table, stages: Sequence[Weighed]) -> list[int]:
    """The most bytes that lie with each worker at one time."""
    return [_peak(table, worker, stages) for worker in range(table.workers)]


def _peak(table: Table, worker: int, stages: Sequence[Weighed]) -> int:
    mine = [number for number, home in enumerate(table.homes) if home == worker]
    lies = most = sum(stages[number].always for number in mine)
    summed = set[int]()  # stages whose gradients are there
    for work in table.lines[worker]:
        weighed, moment = stages[work.stage], 0
        if work.what == FORWARD:
            moment = weighed.forward
        elif work.what in (BACKWARD, INPUTS):
            moment = weighed.backward - weighed.kept + (0 if work.stage in summed else weighed.gradients)
        elif work.what == WEIGHTS:
            moment = weighed.pay - weighed.owed
        elif work.what == UPDATE:
            moment = weighed.update
        most = max(most, lies + moment)
        if work.what == FORWARD:
            lies += weighed.kept
        elif work.what == BACKWARD:
            lies -= weighed.kept
        elif work.what == INPUTS:
            lies += weighed.owed - weighed.kept
        elif work.what == WEIGHTS:
            lies -= weighed.owed
        if work.what in (BACKWARD, INPUTS) and work.stage not in summed:
            summed.add(work.stage)
            lies += weighed.gradients
        elif work.what == UPDATE:
            summed.discard(work.stage)
            lies -= weighed.gradients
        most = max(most, lies)
    return most
