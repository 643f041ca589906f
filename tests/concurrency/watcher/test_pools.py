"""Pools whose workers end as soon as they start, in snapshots by hand."""

from __future__ import annotations

import pytest

from paceline.concurrency.watcher.history import Pools
from paceline.concurrency.watcher.samples import OF_A_WORKER, Counters, Frame, Pace, Process, Snapshot, Thread, Wait

MAIN = (Frame("/usr/lib/python3.11/multiprocessing/pool.py", 768, "wait"), Frame("/home/a.py", 3, "run"))
ELSEWHERE = (Frame("/home/a.py", 3, "run"),)


def respawn_loop(
    workers: list[tuple[int, ...]], runs: tuple[int, ...] = (5, 5, 5), main: tuple[Frame, ...] = MAIN
) -> bool:
    """Whether a pool is found to give no results, after snapshots 4 s apart."""
    pools = Pools()
    for number, (alive, count) in enumerate(zip(workers, runs, strict=True)):
        threads = (Thread(10, Wait("lock", (10,))), Thread(11, Wait("pipe", alive, OF_A_WORKER)))
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
