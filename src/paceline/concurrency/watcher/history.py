"""The readings of the last seconds, and since when each thread has not run and each stack is the same. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from paceline.concurrency.watcher.graph import DeadlockSet, find_retries
from paceline.concurrency.watcher.samples import (
    OF_A_WORKER,
    Counters,
    Facts,
    Pace,
    Process,
    Snapshot,
    Stack,
    Thread,
    ThreadWait,
)

# Pools of multiprocessing whose workers end as soon as they start, again and again: no result ever comes. Pure.

#: Snapshots, and seconds between the first and the last of them, no two of which in a row may show the same worker.
POOL_SNAPSHOTS, SEEN = 3, 6.0
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
            if waiting and old.snapshots + 1 >= POOL_SNAPSHOTS and snapshot.at - old.since >= SEEN:
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


#: Seconds without a single instruction after which a thread is still. Garbage collectors, databases and interpreters
#: that look whether something is to be done wake several times in this time.
STILL = 5.0
#: A tree that uses less of a core than this does little enough that it may hang.
QUIET = 0.05


#: Snapshots, and seconds between the first and the last of them, in which a thread must be seen to ask for the same.
SNAPSHOTS, ASKED, _REMEMBERED = 3, 6.0, 8
#: Seconds for which threads must be seen to ask in vain for each other's locks, again and again.
RETRIED = 8.0
#: Nanoseconds of a processor after which one that asks has done more than to ask: a request over the network, say.
LONGEST_ASK = 500_000


class _Poll(NamedTuple):
    """A thread that asks again and again."""

    what: tuple[ThreadWait, Stack]
    seen: tuple[tuple[float, Pace], ...]  # the snapshots, the newest last, and how far it was
    since: float


class History:
    """Keeps the readings of a window, and forgets older ones."""

    def __init__(self, window: float = STILL) -> None:
        self._window = window
        self._readings: deque[Counters] = deque()
        #: By process and thread: the pace it had last, and when it was first seen to have that pace.
        self._since: dict[tuple[int, int], tuple[Pace, float]] = {}
        #: By process: the main thread's stack in the newest snapshot, and when it was first seen.
        self._stacks: dict[int, tuple[Stack | tuple[int], float]] = {}
        self._observed = 0.0
        #: By process: what the watcher of another machine says.
        self._elsewhere: dict[int, Facts] = {}
        self.pools = Pools()
        #: Threads that ask for each other's locks again and again, since when, and in how many snapshots.
        self._retries: tuple[DeadlockSet, float, int] | None = None
        #: By process and thread: what asks again and again.
        self._polls: dict[tuple[int, int], _Poll] = {}
        #: By process and task, or thread that asks for a monitor of Java: what it waits for, and since which snapshot.
        self._tasks: dict[tuple[int, int], tuple[Thread, float]] = {}

    @property
    def first(self) -> Counters:
        """The oldest reading of the window."""
        return self._readings[0]

    @property
    def last(self) -> Counters:
        """The newest reading."""
        return self._readings[-1]

    def add(self, counters: Counters) -> None:
        """Take a reading."""
        self._readings.append(counters)
        while len(self._readings) > 2 and counters.at - self._readings[1].at >= self._window:
            self._readings.popleft()
        since = {}
        for pid, threads in counters.threads.items():
            for tid, pace in threads.items():
                before = self._since.get((pid, tid))
                same = before is not None and before[0].runs == pace.runs
                since[pid, tid] = (pace, before[1]) if same and before else (pace, counters.at)
        self._since = since

    def observe(self, snapshot: Snapshot) -> None:
        """Take the stacks of a snapshot, and what other watchers say."""
        self._elsewhere = {each.pid: each.facts for each in snapshot.processes if each.facts is not None}
        stacks = {}
        for process in snapshot.processes:
            # A wait of Paceline's own looks around in between: its beginning tells it from the next one.
            stack = (process.began,) if process.began else process.stacks[0] if process.stacks else ()
            old = self._stacks.get(process.pid)
            same = old if old is not None and old[0] == stack else (stack, snapshot.at)
            stacks[process.pid] = (stack, process.began / 1e9) if same is old and process.began else same
        self._stacks, self._observed = stacks, snapshot.at
        self._polls = dict(self._asking(snapshot))
        self.pools.observe(snapshot, self.last)
        tasks = {
            (process.pid, thread.tid): thread
            for process, thread in snapshot.threads()
            if thread.task or thread.wait.kind == "monitor"
        }
        old_tasks = self._tasks
        self._tasks = {at: (each, snapshot.at) for at, each in tasks.items()}
        self._tasks |= {at: old for at, old in old_tasks.items() if old[0] == tasks.get(at)}
        retries, before = find_retries(snapshot), self._retries
        if retries is None:
            self._retries = None
        elif before is not None and before[0].threads == retries.threads:
            self._retries = retries, before[1], before[2] + 1
        else:
            self._retries = retries, snapshot.at, 1

    def _asking(self, snapshot: Snapshot) -> Iterator[tuple[tuple[int, int], _Poll]]:
        """Iterate over the threads that ask; one that is just running, or about to, keeps what was seen of it.

        So does one at the same lines of which this snapshot does not find who could answer: a lock is being tried.
        """
        for process, thread in snapshot.threads():
            at = process.pid, thread.tid
            old = self._polls.get(at)
            pace = self.last.threads.get(process.pid, {}).get(thread.tid)
            if thread.wait.polls and pace is not None:
                what = thread.wait, process.stack_of(thread.tid)
                samples = old.seen if old is not None and old.what == what else ()
                since = old.since if samples and old is not None else snapshot.at
                yield at, _Poll(what, (*samples, (snapshot.at, pace))[-_REMEMBERED:], since)
            elif old is not None and (
                thread.wait.kind in ("running", "gil")
                or (thread.wait.kind == "clock" and process.stack_of(thread.tid) == old.what[1])
            ):
                yield at, old

    def polls(self, pid: int, tid: int) -> bool:
        """Whether a thread did nothing but ask, or sleep and print, in several snapshots."""
        poll = self._polls.get((pid, tid))
        pace = self.last.threads.get(pid, {}).get(tid)
        if poll is None or pace is None or len(poll.seen) < SNAPSHOTS or self._observed - poll.since < ASKED:
            return False
        moved = self._moved(poll.what[0].by, (pid, tid))
        before = next((old for at, old in poll.seen if at >= moved), pace)
        runs = pace.runs - before.runs
        return runs >= 2 and pace.ran - before.ran < LONGEST_ASK * runs

    def _moved(self, pids: tuple[int, ...], asking: tuple[int, int]) -> float:
        """Return when one that could answer last ran: what was asked before that may have been answered by it."""
        others = (
            since for at, (_, since) in self._since.items() if at[0] in pids and at != asking and at not in self._polls
        )
        return max(others, default=0.0)

    @property
    def retries(self) -> tuple[DeadlockSet, float] | None:
        """The threads that several snapshots saw to ask for each other's locks, with a timeout, and since when."""
        if self._retries is None or self._retries[2] < SNAPSHOTS or self._observed - self._retries[1] < RETRIED:
            return None
        return self._retries[:2]

    def since(self, pid: int, tid: int) -> float | None:
        """Return since when a thread is still, or a main thread that moves at the same lines."""
        if pid in self._elsewhere:
            return self.last.at - self._elsewhere[pid].seconds
        if (pid, tid) in self._tasks:
            return self._tasks[pid, tid][1]
        if (pid, tid) in self._polls and not self.still(pid, tid):
            return self._polls[pid, tid].since
        start = self.still_since(pid, tid)
        if tid == pid and pid in self._stacks and not self.still(pid, tid):
            return self._stacks[pid][1]
        return start

    def same_stack(self, pid: int) -> bool:
        """Whether the main thread was at the same lines in all snapshots of a window."""
        if pid in self._elsewhere:
            return self._elsewhere[pid].same_stack
        stack, since = self._stacks.get(pid, ((), self._observed))
        return stack != () and self._observed - since >= self._window

    def cores(self, pid: int) -> float:
        """Return how much of a core a process used in the window."""
        if pid in self._elsewhere:
            return self._elsewhere[pid].cores
        first, last = self.first.threads.get(pid, {}), self.last.threads.get(pid, {})
        ran = sum(pace.ran - (first[tid].ran if tid in first else 0) for tid, pace in last.items())
        return ran / 1e9 / max(self.last.at - self.first.at, 1e-9)

    @property
    def quiet(self) -> bool:
        """Whether the whole tree has done next to nothing in the window."""
        return self.last.at - self.first.at >= self._window and sum(map(self.cores, self.last.threads)) < QUIET

    def still_since(self, pid: int, tid: int) -> float | None:
        """When a thread was first seen as it still is; None if there is no such thread."""
        entry = self._since.get((pid, tid))
        return entry[1] if entry else None

    def still(self, pid: int, tid: int) -> bool:
        """Whether a thread has not run for the whole window."""
        if pid in self._elsewhere:
            return self._elsewhere[pid].still
        since = self.still_since(pid, tid)
        return since is not None and self.last.at - since >= self._window

    def suspects(self) -> frozenset[int]:
        """Return the processes whose main thread is still: without one there is no reason to look closer."""
        return frozenset(pid for pid in self.last.threads if self.still(pid, pid))
