"""Pools of multiprocessing whose workers end as soon as they start, again and again: no result ever comes. Pure."""

from __future__ import annotations

from typing import NamedTuple

from paceline.concurrency.watcher.graph import DeadlockSet
from paceline.concurrency.watcher.samples import OF_A_WORKER, Counters, Process, Snapshot

#: Snapshots, and seconds between the first and the last of them, no two of which in a row may show the same worker.
SNAPSHOTS, SEEN = 3, 6.0
#: Functions of multiprocessing/pool.py in which a thread waits for results, and frames among which one is.
_WAITS, _NEAR = frozenset({"wait", "next", "join"}), 6


class _Pool(NamedTuple):
    """What was seen of one pool since a result last came."""

    runs: int  # of the thread that delivers results
    workers: frozenset[int]  # in the newest snapshot
    since: float
    snapshots: int


class Pools:
    """The pools of a tree."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], _Pool] = {}
        self._barren: tuple[DeadlockSet, float] | None = None

    def observe(self, snapshot: Snapshot, last: Counters) -> None:
        """Take a snapshot, and the newest reading."""
        pools, self._barren = {}, None
        for process, thread in snapshot.threads():
            pace = last.threads.get(process.pid, {}).get(thread.tid)
            if thread.wait.on != OF_A_WORKER or pace is None:
                continue
            at, workers = (process.pid, thread.tid), frozenset(thread.wait.by)
            old = self._seen.get(at)
            if old is None or old.runs != pace.runs or old.workers & workers:
                pools[at] = _Pool(pace.runs, workers, snapshot.at, 1)
                continue
            pools[at] = old._replace(workers=workers, snapshots=old.snapshots + 1)
            waiting = _waiting(process)
            if waiting and old.snapshots + 1 >= SNAPSHOTS and snapshot.at - old.since >= SEEN:
                threads = frozenset({thread.tid, *waiting})
                self._barren = DeadlockSet((process,), (process,), threads), old.since
        self._seen = pools

    @property
    def suspects(self) -> frozenset[int]:
        """The processes with a pool of which no worker lived from one snapshot to the next."""
        return frozenset(pid for (pid, _), pool in self._seen.items() if pool.snapshots > 1)

    @property
    def respawn_loop(self) -> tuple[DeadlockSet, float] | None:
        """The threads that wait for a pool that gives no result, and since when."""
        return self._barren


def _waiting(process: Process) -> list[int]:
    """Return the threads that wait for a result of a pool."""
    return [
        each.tid
        for each in process.threads
        if any(
            frame.function in _WAITS and frame.file.endswith("/multiprocessing/pool.py")
            for frame in process.stack_of(each.tid)[:_NEAR]
        )
    ]
