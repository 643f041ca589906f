"""Who waits for whom, and which processes nothing can wake any more. Pure.

A thread can be woken if it ran lately, if a clock, a signal or the outside can end its wait, or if any thread that
could end its wait can itself be woken. What is left over can never move again: a deadlock, whatever the program means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from paceline.narrative import Wait as Edge
from paceline.narrative import shortest_cycle
from paceline.watcher.samples import CLOSED, Look, Process, Stack, Thread


class Knot(NamedTuple):
    """The processes of a look in which no thread can ever be woken."""

    processes: tuple[Process, ...]
    circle: tuple[Process, ...]  # that wait for each other; the rest are victims


def find_knot(look: Look, still: Callable[[int, int], bool], stopped: bool = False) -> Knot | None:
    """Return the processes that nothing can wake, None if there are none.

    Args:
        look: What every thread waits for.
        still: Whether a thread (by process and thread) has not executed anything since well before the look.
        stopped: Treat stopped processes as such that will not be continued.
    """
    asleep = {
        (process.pid, thread.tid): thread
        for process, thread in look.threads()
        if still(process.pid, thread.tid) and _closed(process, thread, stopped)
    }
    seen = {process.pid for process in look.processes}
    while True:
        awake = [key for key, thread in asleep.items() if _can_be_woken(key, thread, asleep, look, seen)]
        if not awake:
            break
        for key in awake:
            del asleep[key]
    held = tuple(p for p in look.processes if p.threads and all((p.pid, t.tid) in asleep for t in p.threads))
    return Knot(held, _circle(held)) if held else None


def _closed(process: Process, thread: Thread, stopped: bool) -> bool:
    if thread.wait.kind == "stopped":
        return stopped
    if process.handles_signals and thread.tid == process.pid and not waits_for_lock(process.stacks):
        return False
    return thread.wait.kind in CLOSED


def waits_for_lock(stacks: tuple[Stack, ...]) -> bool:
    """Whether a main thread is seen to wait for a lock or a thread, which no signal handler releases in practice."""
    if not stacks or not stacks[0]:
        return False
    innermost = stacks[0][0]
    return not (innermost.file.endswith("threading.py") and innermost.function == "wait")


def _can_be_woken(
    key: tuple[int, int], thread: Thread, asleep: dict[tuple[int, int], Thread], look: Look, seen: set[int]
) -> bool:
    if thread.wait.kind == "stopped":
        return False
    for pid in thread.wait.by:
        if pid not in seen:  # a process outside the tree, or one that has just ended
            return True
        process = look.process(pid)
        others = [(pid, each.tid) for each in process.threads if (pid, each.tid) != key] if process else []
        if any(other not in asleep for other in others):
            return True
    return not thread.wait.by and thread.wait.kind != "pipe"


def _circle(held: tuple[Process, ...]) -> tuple[Process, ...]:
    """Return the shortest circle among the processes; a process whose threads wait for each other is one by itself."""
    edges = [Edge(str(process.pid), "", "", str(pid)) for process in held for pid in waits_for(process)]
    names = {edge.who for edge in shortest_cycle(edges)}
    return tuple(process for process in held if str(process.pid) in names)


def waits_for(process: Process) -> tuple[int, ...]:
    """Return the processes that could wake one: itself only if no other process could."""
    pids = {pid for thread in process.threads for pid in thread.wait.by}
    return tuple(sorted(pids - {process.pid} or pids))
