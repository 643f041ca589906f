"""Watch a process tree: a reading every second, a snapshot when its main threads are still, a report when it hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from paceline.concurrency.watcher.files import RecentSnapshots, Share, Trace
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.judge import Schedule, footprint, judge, probabilities, suspected
from paceline.concurrency.watcher.processes import proc, stacks
from paceline.concurrency.watcher.processes.java import with_java_stacks
from paceline.concurrency.watcher.processes.subjects import with_subjects
from paceline.concurrency.watcher.report import HangReport
from paceline.concurrency.watcher.samples import Process, Snapshot, users_line

# The live screen: a row for each process of the tree. Pure.

CLEAR = "\033[H\033[J"
_HEAD = ("PROCESS", "THREADS", "CORES", "STILL", "WAITS FOR", "AT")
_WIDEST = 44


def screen(history: History, snapshot: Snapshot, verdict: tuple[str, float]) -> str:
    """Return the table as lines of text: what each process uses, since when it is still, and what it waits for."""
    rows = [_HEAD, *(_row(history, each) for each in snapshot.processes if not each.outside)]
    widths = [min(max(len(row[column]) for row in rows), _WIDEST) for column in range(len(_HEAD))]
    lines = ["  ".join(f"{cell[:width]:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([f"{verdict[0]} (probability {verdict[1]:.2f})", *(line.rstrip() for line in lines)])


def _row(history: History, process: Process) -> tuple[str, ...]:
    since = history.since(process.pid, process.pid)
    still = history.still(process.pid, process.pid) and since is not None
    line = users_line(process.stacks[0]) if process.stacks else None
    wait = process.main
    return (
        process.label,
        str(len(process.threads)),
        f"{history.cores(process.pid):.2f}",
        f"{history.last.at - since:.0f} s" if still and since is not None else "",
        wait.kind if wait.kind in ("running", "stopped") else wait.on or wait.kind,
        f"{line.file.rpartition('/')[2]}:{line.line} in {line.function}" if line else "",
    )


INTERVAL = 1.0  # seconds between two readings
#: The list of processes is read anew every second reading: it costs as much as a reading.
TREE_TICKS = 2
#: The live screen shows what processes waited for this many seconds ago at most.
SCREEN_AGE = 4.0
#: Stacks of the same processes are asked for again after this many seconds at the earliest: the signal wakes them.
STACKS_PAUSE = 30.0


class Watch:
    """The observation of one process tree."""

    def __init__(
        self,
        root: int,
        stacks_folder: Path | None = None,
        names: Callable[[], Mapping[int, str]] = dict,
        keep: int | None = 120,
        share: Share | None = None,
    ) -> None:
        self._root, self._stacks_folder, self._names = root, stacks_folder, names
        self._history, self._schedule, self._before = History(), Schedule(), RecentSnapshots()
        self._asked: tuple[frozenset[int], float] = (frozenset(), -STACKS_PAUSE)
        self._share = share
        self._ticks = 0
        self._snapshot: Snapshot | None = None
        self._pids: tuple[int, ...] = ()
        self._outside: frozenset[int] = frozenset()  # processes that the tree waited for in the newest snapshot
        self._explained = False
        self.trace = Trace(keep=keep)

    def tick(self) -> HangReport | None:
        """Take a reading and, where there is a reason to, a snapshot; return what hangs."""
        if self._ticks % TREE_TICKS == 0:
            self._pids = proc.tree([self._root])
        self._ticks += 1
        counters = proc.counters([*self._pids, *(pid for pid in self._outside if pid not in self._pids)])
        self._history.add(counters)
        self.trace.samples.append(counters)
        return self._examine() if self._schedule.due(self._history) else None

    @property
    def ended(self) -> bool:
        """Whether no process of the tree was left at the last reading."""
        return not any(pid in self._history.last.threads for pid in self._pids)

    def verdict(self) -> tuple[str, float]:
        """Return the most probable verdict at this moment, and its probability."""
        if not self._pids:
            return "ended", 1.0
        scores = probabilities(footprint(self._history, proc.snapshot(self._pids)))
        return max(scores.items(), key=lambda item: item[1])

    def screen(self) -> str:
        """Return the table of the tree's processes, as the newest snapshot has them."""
        if self._snapshot is None or self._history.last.at - self._snapshot.at > SCREEN_AGE:
            self._snapshot = proc.snapshot(self._pids).with_names(self._names())
        scores = probabilities(footprint(self._history, self._snapshot))
        return screen(self._history, self._snapshot, max(scores.items(), key=lambda item: item[1]))

    def close(self) -> None:
        """Leave the shared folder."""
        if self._share is not None:
            self._share.close()

    def kill(self) -> None:
        """End the tree with SIGKILL, all processes stopped first so that none starts another."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in proc.tree([self._root]):
                with suppress(OSError):
                    os.kill(pid, number)

    def _examine(self) -> HangReport | None:
        started = time.thread_time()
        snapshot = proc.snapshot(self._pids).with_names(self._names())
        before = self._before.of(snapshot)
        suspects = suspected(self._history, snapshot)
        if suspects and before is not None:
            snapshot = self._with_stacks(snapshot, suspects)
        self._history.observe(snapshot)
        if self._share is not None:
            snapshot = self._share.merge(snapshot, self._history)
            self._history.observe(snapshot)
        self._snapshot = snapshot
        self.trace.samples.append(snapshot)
        self._outside = frozenset(each.pid for each in snapshot.processes if each.outside)
        self._schedule.ranks = any(process.rank is not None for process in snapshot.processes)
        self._schedule.charge(time.thread_time() - started)
        self._schedule.confirm(snapshot.at, suspects)
        report = judge(self._history, snapshot, before)
        if report is None or self._explained:
            return report
        snapshot = with_subjects(snapshot, (each.pid for each in report.processes))
        self.trace.samples[-1] = snapshot
        report = judge(self._history, snapshot, before)
        self._explained = report is not None  # once: it reads much more of the memory
        return report

    def _with_stacks(self, snapshot: Snapshot, pids: frozenset[int]) -> Snapshot:
        previous, at = self._asked
        pids = frozenset(pid for pid in pids if not snapshot.stacks_of(pid))  # of other versions of Python
        if not pids or (pids <= previous and snapshot.at - at < STACKS_PAUSE):
            return snapshot
        self._asked = (pids, snapshot.at)
        if self._stacks_folder is not None:
            snapshot = snapshot.with_stacks(stacks.ask(self._stacks_folder, pids))
        return with_java_stacks(snapshot, pids)


def pace(started: float) -> None:
    """Sleep until the next tick is due; ticks that were missed are left out."""
    time.sleep(INTERVAL - (time.monotonic() - started) % INTERVAL)
