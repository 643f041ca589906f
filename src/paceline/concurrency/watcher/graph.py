"""Who waits for whom, and which processes nothing can wake any more. Pure.

A thread can be woken if it ran lately, if a clock, a signal or the outside can end its wait, or if any thread that
could end its wait can itself be woken. What is left over can never move again: a deadlock, whatever the program means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from paceline.concurrency.watcher.samples import (
    AGAIN,
    ASKED_AT_ONCE,
    CLOSED,
    ENDED,
    EVENT,
    MAIN_OF_JAVA,
    OPEN_FILE_LOCK,
    Process,
    Snapshot,
    Stack,
    Thread,
)
from paceline.narrative import Wait as Edge
from paceline.narrative import shortest_cycle

_WAIT = ("threading.py", "wait")
_ACCEPT = ("socket.py", "accept")
_RUN = ("threading.py", "run")
_SHARED = frozenset({"shared lock", "named pipe"})
#: Functions of Java in which its main thread waits for other threads: what a signal starts releases none of those.
_ENDED_BY_NO_HOOK = (
    "java.lang.Thread.join",
    "java.lang.ProcessImpl.waitFor",
    "java.lang.ClassLoader.",
    "DestroyJavaVM",
    "java.util.concurrent.FutureTask.get",
    "java.util.concurrent.CompletableFuture.",
    "java.util.concurrent.locks.Reentrant",
    "java.util.concurrent.CyclicBarrier.",
)


class DeadlockSet(NamedTuple):
    """The threads of a snapshot that can never be woken, where a process of them is complete or a circle is.

    Helpers of Python's library that wait for work are left out, unless there are only such.
    """

    processes: tuple[Process, ...]  # all that have such a thread
    circle: tuple[Process, ...]  # that wait for each other; the rest are victims
    threads: frozenset[int]  # that can never be woken
    core: tuple[int, ...] = ()  # threads that hold each other's locks; empty if no owners are known


def find_knot(
    snapshot: Snapshot,
    still: Callable[[int, int], bool],
    stopped: bool = False,
    polls: Callable[[int, int], bool] = lambda pid, tid: False,
    signals: bool = True,
) -> DeadlockSet | None:
    """Return what nothing can wake, None if there is nothing.

    Args:
        snapshot: What every thread waits for.
        still: Whether a thread (by process and thread) has not executed anything since well before the snapshot.
        stopped: Treat stopped processes as such that will not be continued.
        polls: Whether a thread was seen to ask, or to sleep and print, at the same line in several snapshots.
        signals: Whether a signal that a program handles counts as able to wake it.
    """
    asleep = {
        thread.tid: thread
        for process, thread in snapshot.threads()
        if (
            (thread.task or still(process.pid, thread.tid) or thread.wait.kind in ASKED_AT_ONCE)
            and _closed(process, thread, stopped, signals)
        )
        or (thread.wait.polls == "asks" and polls(process.pid, thread.tid) and not _signalled(process, thread))
        or (thread.task and thread.wait.polls == "asks")
    }
    idle = {
        thread.tid
        for process, thread in snapshot.threads()
        # A main thread in `Event().wait()` only keeps the program alive: then such a thread is all that it is to do.
        if thread.wait.polls == "idles"
        if thread.task
        or (thread.tid != process.pid and waits_for_lock(process.stacks) and polls(process.pid, thread.tid))
    }
    while True:
        # The greatest fixed point: all are taken to sleep for ever, and those are
        # taken out again that one of the others, or of those taken out, may wake.
        awake = [tid for tid, thread in asleep.items() if _can_be_woken(thread, asleep, idle, snapshot)]
        if not awake:
            break
        for tid in awake:
            del asleep[tid]
    blocked = tuple(
        p for p in snapshot.processes if p.threads and all(t.tid in asleep or t.tid in idle for t in p.threads)
    )
    core = _owned_circle(asleep)
    # Without owners a thread that still runs in the same process may release what the others wait for.
    if not core and not any(not process.outside for process in blocked):
        return None
    helpers = {t.tid for process in snapshot.processes for t in process.threads if _is_helper(process, t)}
    tids = asleep.keys() - helpers or asleep.keys()
    processes = tuple(p for p in snapshot.processes if any(t.tid in tids for t in p.threads))
    circle = tuple(p for p in processes if any(t.tid in core for t in p.threads)) if core else _circle(blocked)
    return DeadlockSet(processes, circle, frozenset(tids), core)


def find_retries(snapshot: Snapshot) -> DeadlockSet | None:
    """Return threads that hold each other's locks although they ask for them with a timeout; None if there are none."""
    waiting = {t.tid: t for _, t in snapshot.threads() if t.wait.owners and t.wait.kind not in ASKED_AT_ONCE}
    core = _owned_circle(waiting)
    if not any(waiting[tid].wait.timed for tid in core):
        return None
    processes = tuple(p for p in snapshot.processes if any(t.tid in core for t in p.threads))
    return DeadlockSet(processes, processes, frozenset(core), core)


def _owned_circle(asleep: Mapping[int, Thread]) -> tuple[int, ...]:
    """Return threads that each wait for what the next one holds; or one that waits for what a dead thread holds."""
    edges = [Edge(str(tid), "", "", str(owner)) for tid, each in asleep.items() for owner in each.wait.owners]
    circle = tuple(int(edge.who) for edge in shortest_cycle(edges))
    orphans = [tid for tid, each in asleep.items() if ENDED in each.wait.owners]
    return circle or tuple(orphans[:1])


def _closed(process: Process, thread: Thread, stopped: bool, signals: bool) -> bool:
    if thread.wait.kind == "stopped":
        return stopped
    if signals and _signalled(process, thread):
        return False
    return thread.wait.kind in CLOSED and not thread.wait.timed


def _signalled(process: Process, thread: Thread) -> bool:
    """Whether a signal may end what a thread waits for: its handler may set a flag, but brings no data."""
    if thread.wait.polls and not thread.wait.on.endswith(AGAIN):
        return process.handles_signals and thread.tid == process.pid and thread.wait.on != OPEN_FILE_LOCK
    if thread.wait.owners:
        return False
    if thread.wait.on == MAIN_OF_JAVA:
        return not any(frame.function.startswith(_ENDED_BY_NO_HOOK) for frame in process.stack_of(thread.tid))
    if not process.handles_signals or thread.tid != process.pid:
        return False
    # A handler may write to what its own process reads: Python itself does so for `signal.set_wakeup_fd`.
    return _reads_itself(process, thread) or not waits_for_lock(process.stacks)


def _reads_itself(process: Process, thread: Thread) -> bool:
    """Whether a thread waits for what its own process alone can write."""
    wait = thread.wait
    return wait.by == (process.pid,) and (wait.kind in ("pipe", "socket") or wait.on == EVENT)


def waits_for_lock(stacks: tuple[Stack, ...]) -> bool:
    """Whether a main thread is seen to wait for a lock or a thread, which no signal handler releases in practice.

    A handler sets an event or notifies a condition: a main thread that has called `wait` of one may wait for a signal,
    and so may one that runs an event loop.
    """
    if not stacks or not stacks[0] or any(os.path.dirname(frame.file).endswith("/asyncio") for frame in stacks[0]):
        return False
    waits = 0
    while waits < len(stacks[0]) and (os.path.basename(stacks[0][waits].file), stacks[0][waits].function) == _WAIT:
        waits += 1
    return waits == 0 or (waits < len(stacks[0]) and "/lib/python3" in stacks[0][waits].file)


def _can_be_woken(thread: Thread, asleep: Mapping[int, Thread], idle: Collection[int], snapshot: Snapshot) -> bool:
    """Whether anything may end a wait; those that only sleep and print end none, but may be waited for."""
    wait = thread.wait
    if wait.kind == "stopped":
        return False
    if wait.owners:
        return any(owner not in asleep and owner != ENDED for owner in wait.owners)
    for pid in wait.by:
        process = snapshot.process(pid)
        if process is None:  # it has just ended, or cannot be read
            return True
        if any(each.tid not in asleep and each.tid not in idle for each in process.threads if each.tid != thread.tid):
            return True
    return not wait.by and wait.kind != "pipe"


def _circle(processes: tuple[Process, ...]) -> tuple[Process, ...]:
    """Return the shortest circle among the processes; a process whose threads wait for each other is a circle of one.

    Parents that only wait for the end of their children come last: they share memory with a circle of their children,
    so they could hold its locks as far as the kernel says. The end of a pipe that they could read or write is theirs.
    """
    parents = {p.pid for p in processes if any(t.wait.kind == "child" for t in p.threads)}
    rest = tuple(process for process in processes if process.pid not in parents)
    circle = _circle_of(rest, shares=True)
    piped = {pid for p in circle for t in p.threads if t.wait.kind == "pipe" for pid in t.wait.by}
    return circle if circle and not piped & parents else _circle_of(processes)


def _circle_of(processes: tuple[Process, ...], shares: bool = False) -> tuple[Process, ...]:
    pids = {process.pid for process in processes}
    alone = tuple(process for process in processes if waits_for(process) == (process.pid,))
    if alone:
        return alone
    edges = [
        Edge(str(process.pid), "", "", str(pid))
        for process in processes
        for pid in (set(waits_for(process)) & pids or (_shared(process) if shares else set()))
    ]
    circle = {edge.who for edge in shortest_cycle(edges)}
    # Those that wait for the circle, and it for them, are as much a part of it: several workers of one parent, say.
    names = _reached(circle, [(edge.who, edge.whom) for edge in edges])
    names &= _reached(circle, [(edge.whom, edge.who) for edge in edges])
    return tuple(process for process in processes if str(process.pid) in names)


def _reached(start: set[str], edges: Sequence[tuple[str, str]]) -> set[str]:
    nodes = set(start)
    while more := {target for source, target in edges if source in nodes} - nodes:
        nodes |= more
    return nodes


def _shared(process: Process) -> set[int]:
    """Return the process itself if it waits for what its whole tree shares, or asks for what it could give itself.

    It may hold the lock, or be the one that was to open the named pipe, or one that has ended may.
    """
    waits = [thread.wait for thread in process.threads if not thread.wait.owners]
    itself = any(each.kind in _SHARED or (each.polls == "asks" and process.pid in each.by) for each in waits)
    return {process.pid} if itself else set()


def waits_for(process: Process) -> tuple[int, ...]:
    """Return the processes that could wake one: itself only if no other process could."""
    pids = {pid for thread in process.threads if not _is_helper(process, thread) for pid in thread.wait.by}
    return tuple(sorted(pids - {process.pid} or pids))


def _is_helper(process: Process, thread: Thread) -> bool:
    """Whether a thread was started by Python's library for itself and waits for work: it feeds a queue, say."""
    stack = process.stack_of(thread.tid)
    names = [(os.path.basename(frame.file), frame.function) for frame in stack]
    return (
        bool(names)
        and names[0] in (_WAIT, _ACCEPT)
        and any(outer == _RUN and name.startswith("_") for (_, name), outer in pairwise(names))
        and all(frame.standard for frame in stack)
    )
