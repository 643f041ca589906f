"""All that is under way in a group, and how it goes on: no thread waits in one operation without moving all others.

The collectives of a group are a queue: the first goes as far as it can without waiting. A thread that waits for one of
them, or for a message, drives the queues and the messages of all groups of this process. What no thread waits for is
driven by the background thread, so that any program that gets through with gloo gets through here.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

from paceline.errors import CollectiveFailed, CollectivesDiffer, RankGone, RankMissing
from paceline.runtime.backend import group_memory
from paceline.runtime.backend.group_memory import (
    ARRIVED,
    CLOSED,
    FAILED,
    LEFT,
    SITE,
    STATUS,
    VICTIM,
    WAITING,
    GroupMemory,
)
from paceline.runtime.backend.point_to_point import PointToPoint, Transfer
from paceline.runtime.backend.work import CollectiveWork, PendingWork
from paceline.runtime.links.memory import Memory
from paceline.runtime.links.waiting import Spin, wait

# The messages of what goes wrong between ranks.

NAMED = 8  # ranks that a message lists by number
SITES_SECONDS = 1.0  # for the others to arrive, and to say where they called from
ADVICE = "Look at what rank {} printed last; if it is only slow, give init_process_group a longer timeout"


def missing(memory: GroupMemory, who: str, other: int, has_left: bool, seconds: float) -> str:
    """Describe a wait for a rank that does not arrive. `who` begins it: "rank 0 waited in barrier at train.py:40"."""
    how = _how_gone(memory, other) if has_left else f"did not come within {seconds:.1f} s"
    status, arrived = memory.status_of(other), memory.cells[other][ARRIVED]
    lines = [f"{who} for rank {other}, which {how}"]
    if status:
        lines.append(f"  rank {other}: {status}")
    last = group_memory.describe(memory.call_of(other, arrived))
    progress = f"its round {arrived} in this group; here it is round {memory.round}"
    lines.append(f"  rank {other} was last in {last} ({progress})")
    return "\n".join(lines) + "\n" + ADVICE.format(other)


def ranks(numbers: list[int]) -> str:
    """List ranks: "rank 1, 3"."""
    if not numbers:
        return "no rank"
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"rank {', '.join(map(str, numbers[:NAMED]))}{more}"


def _how_gone(memory: GroupMemory, other: int) -> str:
    departure = memory.cells[other][LEFT]
    if departure == FAILED:
        return "has failed in this group before"
    if departure:
        return "has left the group (it ended, or destroyed or aborted the group)"
    return f"is gone: its process {memory.processes.pids[other]} has ended"


def difference(memory: GroupMemory, site: str) -> str:
    """Describe a round in which ranks called different operations, with the line of each.

    Each rank that has arrived notices the difference, writes where it called from and reads the others' lines; so do
    ranks that arrive late.
    """
    number = memory.round
    memory.write(memory.sites, SITE, number, site)
    memory.ring_all()
    give_up = time.perf_counter() + SITES_SECONDS
    arrived = {}
    lines = []
    for rank, cell in enumerate(memory.cells):
        while number > cell[SITE] and time.perf_counter() < give_up:
            if rank in memory.gone():
                break
            time.sleep(0.001)
        if cell[ARRIVED] < number:
            lines.append(f"  rank {rank}: has not come yet")
            continue
        arrived[rank] = memory.call_of(rank, number)
        where = memory.read(memory.sites, rank) if cell[SITE] == number else "an unknown place"
        lines.append(f"  rank {rank}: {group_memory.describe(arrived[rank])}, at {where}")
    return (
        f"the ranks called different operations in round {number} of this group{_minority(arrived)}:\n"
        + "\n".join(lines)
        + "\nEvery rank must call the same operations in the same order, with as many numbers of the same dtype, "
        "the same reduction and the same root"
    )


def _minority(arrived: dict[int, int]) -> str:
    """Name the ranks that differ from a call that most ranks agree on."""
    (call, votes), *rest = Counter(arrived.values()).most_common()
    if not rest or votes <= max(count for _, count in rest):
        return ""
    odd = [f"{rank}" for rank, other in arrived.items() if other != call]
    return f"; not like the others: rank {', '.join(odd)}"


# A thread that drives what is under way and no thread waits for. It runs only while there is, or was, such a thing.
# It looks from time to time instead of being woken: waking it would cost every operation of DDP more than the
# operation.

SHORTEST_NAP_SECONDS = 0.001
LONGEST_NAP_SECONDS = 0.03  # each look takes the interpreter, and with it a core, from the training
IDLE_SECONDS = 1.0  # before the thread ends
STOP_SECONDS = 5.0  # for the thread to end, with what it is doing


class Driven(Protocol):
    """What the thread drives: the progress engine of a group."""

    def busy(self) -> bool:
        """Whether anything is under way."""

    def drive_unwaited(self) -> bool:
        """Move what no thread waits for; whether there was anything."""


class BackgroundThread:
    """The thread of a process, for all its groups."""

    def __init__(self) -> None:
        self._watched: set[Driven] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def watch(self, engine: Driven) -> None:
        """Drive a group until nothing is under way in it; starts the thread where it does not run."""
        with self._lock:
            self._watched.add(engine)
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="paceline-background", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread with the process: one that the interpreter ends within PyTorch takes the process with it."""
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)

    def forget_all(self) -> None:
        """Begin afresh in a forked child, which has no such thread."""
        self._watched, self._lock, self._thread = set(), threading.Lock(), None
        self._stopped = threading.Event()

    def _run(self) -> None:
        nap, idle_since = SHORTEST_NAP_SECONDS, time.monotonic()
        while not self._stopped.wait(nap):
            with self._lock:
                watched = list(self._watched)
            unwaited = [engine.drive_unwaited() for engine in watched]
            nap = SHORTEST_NAP_SECONDS if any(unwaited) else min(1.5 * nap, LONGEST_NAP_SECONDS)
            with self._lock:
                self._watched = {engine for engine in self._watched if engine.busy()}
                if self._watched:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > IDLE_SECONDS:
                    self._thread = None
                    return


BACKGROUND = BackgroundThread()


SPIN_SECONDS = 1e-3  # a wake-up may cost a tenth of it, and is paid by the rank that is waited for
ALONE_SECONDS = 50e-6  # of them without giving the core to other processes
NAP_SECONDS = 0.01  # a lost wake-up, and noticing a death, cost at most this
SHORT_NAP_SECONDS = 0.001  # with other groups under way, whose ranks do not ring this group's doorbell
PATIENCE_SECONDS = 0.01  # before a future is returned unset
STATUS_AFTER_SECONDS = 0.05  # of waiting: leave word of it, for the others' messages

#: The engines of this process.
ENGINES: weakref.WeakSet[ProgressEngine] = weakref.WeakSet()


class _Impatient(Exception):
    """Raised out of a wait that is only to last as long as the others are not far."""


class ProgressEngine:
    """Drives the operations of one group."""

    def __init__(self, memory: Memory, rank: int, pids: Sequence[int], seconds: float, crowd: int) -> None:
        self.memory = GroupMemory(memory, rank, pids)
        #: Guards the queue, the messages and the rounds: any thread may drive them.
        self.lock = threading.RLock()
        self.transfers = PointToPoint(memory, self)
        self.queue: deque[CollectiveWork] = deque()
        #: Works that are done, and whose futures are to be set.
        self.promised: deque[PendingWork] = deque()
        self.seconds, self.closed = seconds, ""
        #: Threads that wait in this group past the spinning, and so drive it.
        self.waiting = 0
        self._failure: CollectiveFailed | None = None
        # With more ranks than cores, the rank that is waited for may need this core.
        alone = ALONE_SECONDS if crowd <= len(os.sched_getaffinity(0)) else 0.0
        self._spin = Spin(int(SPIN_SECONDS * 1e9), int(alone * 1e9))
        ENGINES.add(self)

    def check(self) -> None:
        """Raise if the group cannot be used any longer."""
        if self.closed:
            raise CollectiveFailed(f"the process group {self.closed}; make a new one to go on")
        if self._failure is not None:
            raise CollectiveFailed(f"the process group has failed before: {self._failure}")

    def start(self, work: CollectiveWork) -> None:
        """Queue a collective, and let it go as far as it can."""
        with self.lock:  # a failure in another thread empties the queue: the work is refused, or fails with the others
            self.check()
            self.queue.append(work)  # [2]
        self.advance()

    def advance(self) -> None:
        """Let the collectives go on, one after another."""
        queue = self.queue
        with self.lock:
            while queue and queue[0].advance():
                if queue:  # a failure has emptied it
                    queue.popleft()
        self.keep_promises()

    def keep_promises(self) -> None:
        """Set the futures of what is done."""
        while self.promised:
            self.promised.popleft().keep_promise()

    def tend(self) -> None:
        """Move whatever can be moved in this group."""
        if not self.closed:
            self.transfers.progress()
            self.advance()

    def busy(self) -> bool:
        """Whether anything is under way in this group."""
        return not self.closed and (bool(self.queue) or self.transfers.busy())

    def drive_unwaited(self) -> bool:
        """Move what no thread waits for, on behalf of the background thread; whether there was anything."""
        if self.waiting or not self.busy() or self._just_begun():
            return False
        departed = self.memory.gone()
        self.tend()
        for work in [*list(self.queue)[:1], *self.transfers.promises()]:
            waited = time.perf_counter() - work.since
            self._judge(work, departed, waited, waited > self.seconds)
        return True

    def _just_begun(self) -> bool:
        """Whether the thread that began a collective has hardly had the time to wait for it, as DDP's does."""
        head = next(iter(self.queue), None)
        return head is not None and time.perf_counter() - head.since < PATIENCE_SECONDS and not self.transfers.busy()

    def wait(self, work: PendingWork, seconds: float, patient: bool = True) -> None:
        """Return when the work is done or has failed: by the arrival of others, their end, or the deadline.

        Args:
            work: what is waited for.
            seconds: the deadline; 0 for that of the group.
            patient: whether to wait longer than it takes others that are about to arrive.
        """
        step = self.transfers.progress if isinstance(work, Transfer) else self.advance
        limit, napping = (seconds if seconds > 0 else self.seconds), False

        def ready() -> bool:
            step()
            return work.done

        def nap(nanoseconds: int) -> float:
            nonlocal step, napping
            waited = nanoseconds / 1e9
            if not napping:
                # What arrives from now on is announced by the doorbell: look at everything before each sleep.
                step, napping = self.tend, True
                self.waiting += 1
            if not patient and waited > PATIENCE_SECONDS:
                raise _Impatient
            self._between_naps(work, waited, waited > limit)
            return SHORT_NAP_SECONDS if self._others_busy() else NAP_SECONDS

        try:
            wait(ready, self.memory.doorbell, self._spin, nap)  # [5]
        except _Impatient:
            BACKGROUND.watch(self)
        finally:
            if napping:
                self.waiting -= 1
                if self.memory.mine[STATUS] == WAITING:
                    _withdraw_status()

    def _between_naps(self, work: PendingWork, waited: float, too_long: bool) -> None:
        """Move everything in all groups, and fail what it is of no use to wait for."""
        if waited > STATUS_AFTER_SECONDS and not self.memory.mine[STATUS]:
            status = f"is waiting in {work.describe()} for {ranks(work.missing())}"
            for engine in list(ENGINES):
                engine.publish_status(status)
        departed = self.memory.gone()  # asked before the work goes on: a rank may arrive and end at once
        for engine in list(ENGINES):
            engine.tend()
        if not work.done:
            self._judge(work, departed, waited, too_long)

    def _others_busy(self) -> bool:
        return any(engine.busy() for engine in list(ENGINES) if engine is not self)

    def _judge(self, work: PendingWork, departed: set[int], waited: float, too_long: bool) -> None:
        """Fail the group if it is of no use to wait for the work any longer."""
        memory, differs = self.memory, False
        with self.lock:  # another thread may be half way to the next round
            if isinstance(work, CollectiveWork) and self.queue:
                work = self.queue[0]  # the others wait for it
                differs = memory.any_differs()
            if work.done:
                return
            missing = work.missing()
        if differs:
            assert isinstance(work, CollectiveWork)
            self.fail_by_difference(work)
            return
        never = departed.intersection(missing)
        # A message of any source is hopeless only when all ranks are gone.
        if never and (len(never) == len(missing) or not work.any_source):
            self.fail(RankGone(self._waited_for(work, memory.culprit(never), True, waited)))
        elif too_long:
            other = missing[0] if missing else memory.others[0][0]
            self.fail(RankMissing(self._waited_for(work, other, False, waited)))

    def _waited_for(self, work: PendingWork, other: int, has_left: bool, waited: float) -> str:
        who = f"rank {self.memory.rank} waited in {work.describe()}"
        return missing(self.memory, who, other, has_left, waited)

    def publish_status(self, status: str, mark: int = WAITING) -> None:
        """Leave word, for the messages of other ranks, of what this one waits for or has failed with."""
        if not self.closed and self.memory.mine[STATUS] != VICTIM:
            self.memory.write(self.memory.statuses, STATUS, mark, status)

    def fail(self, failure: CollectiveFailed) -> None:
        """End everything that is under way in the group; the other ranks fail at once too."""
        with self.lock:
            if self._failure is None:
                for engine in list(ENGINES):
                    engine.publish_status(f"has failed: {failure}", VICTIM)
                self._failure = failure
                self.memory.leave(FAILED)
            for work in self._forget_all():
                work.finish(failure)
        self.advance()

    def fail_by_difference(self, work: CollectiveWork) -> None:
        """End everything because ranks have called different operations."""
        if self._failure is None:
            self.fail(CollectivesDiffer(difference(self.memory, str(work.site))))

    def _forget_all(self) -> list[PendingWork]:
        """Empty the queue and the messages, and return what was in them."""
        works = [*self.queue, *self.transfers.let_go()]
        self.queue.clear()
        return works

    def close(self, why: str) -> None:
        """End the group for this rank: what waits in it, here or in another process, fails."""
        if self.closed:
            return
        self.closed = why
        self.memory.leave(CLOSED)
        with self.lock:
            for work in self._forget_all():
                work.finish(CollectiveFailed(f"{work.describe()} did not end: the process group {why}"))
        self.advance()
        self.memory.close()
        ENGINES.discard(self)


def _withdraw_status() -> None:
    """Delete the status from all groups in which no thread waits."""
    for engine in list(ENGINES):
        if not engine.waiting and not engine.closed and engine.memory.mine[STATUS] == WAITING:
            engine.memory.mine[STATUS] = 0


def _leave_all() -> None:
    """Leave all groups at the end of the process, and let the other ranks know at once what it ended with."""
    error = getattr(sys, "last_value", None)
    for engine in list(ENGINES):
        if error is not None:
            mark = VICTIM if isinstance(error, CollectiveFailed) else WAITING
            engine.publish_status(f"ended with {type(error).__name__}: {error}", mark)
        engine.close("ended with its process")
    BACKGROUND.stop()


def _in_child() -> None:
    """Close all groups in a forked child, which is not a rank: the others do not see the rank leave."""
    for engine in list(ENGINES):
        engine.closed = "belongs to the parent process"
    ENGINES.clear()
    BACKGROUND.forget_all()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_in_child)
