"""When snapshots are taken: often enough, and not more often than they may cost."""

from __future__ import annotations

import pytest

from paceline.concurrency.watcher.history import History, Pools
from paceline.concurrency.watcher.judge import SAVED, SHARE, Schedule
from paceline.concurrency.watcher.samples import (
    OF_A_WORKER,
    Counters,
    Frame,
    Pace,
    Process,
    Snapshot,
    Thread,
    ThreadWait,
)

# --- Pools whose workers end as soon as they start, in snapshots by hand ----------------------------------------------

MAIN = (Frame("/usr/lib/python3.11/multiprocessing/pool.py", 768, "wait"), Frame("/home/a.py", 3, "run"))
ELSEWHERE = (Frame("/home/a.py", 3, "run"),)


def respawn_loop(
    workers: list[tuple[int, ...]], runs: tuple[int, ...] = (5, 5, 5), main: tuple[Frame, ...] = MAIN
) -> bool:
    """Whether a pool is found to give no results, after snapshots 4 s apart."""
    pools = Pools()
    for number, (alive, count) in enumerate(zip(workers, runs, strict=True)):
        threads = (Thread(10, ThreadWait("lock", (10,))), Thread(11, ThreadWait("pipe", alive, OF_A_WORKER)))
        snapshot = Snapshot(4.0 * number, (Process(10, 1, "a.py", threads, stacks=(main,), tids=(10,)),))
        pools.observe(snapshot, Counters(snapshot.at, {10: {10: Pace(1, 1, 1), 11: Pace(1, 1, count)}}, {}))
    return pools.respawn_loop is not None


def test_workers_that_never_live_from_one_look_to_the_next_give_no_result() -> None:
    assert respawn_loop([(21, 22), (31, 32), (41,)])
    assert respawn_loop([(), (), ()])


@pytest.mark.parametrize(
    ("workers", "runs", "main"),
    [
        ([(21, 22), (21, 32), (41,)], (5, 5, 5), MAIN),  # one lives on
        ([(21,), (31,), (41,)], (5, 5, 6), MAIN),  # a result has come: each worker has one task only
        ([(21,), (31,), (41,)], (5, 5, 5), ELSEWHERE),  # no one waits for a result
    ],
)
def test_a_pool_that_works_is_not_found(
    workers: list[tuple[int, ...]], runs: tuple[int, ...], main: tuple[Frame, ...]
) -> None:
    assert not respawn_loop(workers, runs, main)


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
