"""When snapshots are taken: often enough, and not more often than they may cost."""

from __future__ import annotations

import pytest

from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.judge import SAVED, SHARE, Schedule
from paceline.concurrency.watcher.samples import Counters, Pace

SECONDS = 300


def snapshots(cost: float) -> int:
    """Return how many snapshots are taken of a tree in which every third second another process becomes still."""
    history, schedule, taken = History(), Schedule(), 0
    for at in range(SECONDS):
        paces = {pid: {pid: Pace(0, 0, min(at, 3 * pid))} for pid in range(1, SECONDS // 3)}
        history.add(Counters(float(at), paces, {}))
        if schedule.due(history):
            taken += 1
            schedule.charge(cost)
            schedule.confirm(float(at), history.suspects())
    return taken


@pytest.mark.parametrize("cost", [0.1, 0.3])
def test_snapshots_take_their_share_of_a_core_however_often_there_is_a_reason(cost: float) -> None:
    assert cost * snapshots(cost) <= SAVED + SHARE * SECONDS + cost


def test_cheap_snapshots_are_taken_whenever_there_is_a_reason() -> None:
    assert snapshots(0.002) > SECONDS // 4
