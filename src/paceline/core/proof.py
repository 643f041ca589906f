"""Proving a collective's table before a process starts.

The table is executed with symbols: the segment of each worker is the multiset of contributions in it. Proved are: every
offer has its taker in the same step and the other way round (so nobody waits for ever: at each step all waits are
for the step's own offers, which need nothing of that step), and at the end every worker has every contribution
exactly once.
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

from paceline.core.meetings import Collective, Step
from paceline.errors import PlanError


def prove(meeting: Collective, workers: int) -> int:
    """Raise PlanError with the first thing that is wrong; otherwise the number of steps."""
    name, segments = type(meeting).__name__, meeting.segments(workers)
    held = [[Counter({worker: 1}) for _ in range(segments)] for worker in range(workers)]
    tables = [list(meeting.steps(worker, workers)) for worker in range(workers)]
    for number, row in enumerate(zip_longest(*tables)):
        if None in row:
            raise PlanError(f"{name}: step {number} is missing for worker {row.index(None)} of {workers}")
        _every_offer_is_taken(name, number, row)
        before = [[Counter(c) for c in mine] for mine in held]
        for worker, step in enumerate(row):
            taken = before[step.receive_from][step.receive]
            held[worker][step.receive] = held[worker][step.receive] + taken if step.reduce else taken
    complete = Counter(dict.fromkeys(range(workers), 1))
    for worker, mine in enumerate(held):
        for segment, contributions in enumerate(mine):
            if contributions != complete:
                raise PlanError(
                    f"{name}: worker {worker} of {workers} ends with segment {segment} made of "
                    f"{dict(contributions)} instead of one contribution of each"
                )
    return len(tables[0])


def _every_offer_is_taken(name: str, number: int, row: tuple[Step, ...]) -> None:
    for worker, step in enumerate(row):
        sender = row[step.receive_from]
        if (sender.send_to, sender.send) != (worker, step.receive):
            raise PlanError(
                f"{name}: in step {number} worker {worker} waits for segment {step.receive} of worker "
                f"{step.receive_from}, who offers segment {sender.send} to worker {sender.send_to}: both wait for ever"
            )


def table_seconds(meeting: Collective, workers: int, size: float, latency: float, bandwidth: float) -> float:
    """The table's time, step by step: what `Collective.seconds` must equal."""
    ready = [0.0] * workers
    piece = size / meeting.segments(workers)
    for row in zip(*(meeting.steps(worker, workers) for worker in range(workers)), strict=True):
        start = list(ready)
        for worker, step in enumerate(row):
            arrives = start[step.receive_from] + latency + piece / bandwidth
            ready[worker] = max(start[worker], arrives)
    return max(ready)
