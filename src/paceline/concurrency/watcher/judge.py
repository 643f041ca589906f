"""Decide from readings and snapshots whether a program hangs. Pure: a recorded trace is judged as the live run was."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from paceline.concurrency.watcher.graph import DeadlockSet, find_knot
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.ranks import find_divergence
from paceline.concurrency.watcher.report import HangReport, Span, report_divergence, report_knot
from paceline.concurrency.watcher.samples import Process, Snapshot, Thread

#: The seconds between a first snapshot and the second one that has to confirm it.
CONFIRM = 3.0
#: What is found is only said from this probability on.
SAID = 0.5
#: Seconds between two snapshots, which cost much more than readings: after the first and after later ones in which
#: nothing was found, and where no main thread is still, as in a busy program.
FIRST_PAUSE, LAST_PAUSE, BUSY_PAUSE = 4.0, 8.0, 30.0
#: Snapshots may cost this share of a core: where one takes long, the pauses are longer, up to so many seconds.
SHARE, LONGEST_PAUSE = 0.004, 18.0
#: Seconds of a processor that may be saved up for snapshots, for processes of a large tree that become still in a row.
SAVED = 2.0
#: The probability of a circle of locks whose owners are known, or of a stopped process, seen twice.
PROVEN = 0.99


@dataclass
class Schedule:
    """When to take the next snapshot."""

    ranks: bool = False  # the newest snapshot has ranks; those of MPI poll, so that a hang does not make them still
    _suspects: frozenset[int] = frozenset()
    _confirmed: frozenset[int] = frozenset()
    _pause: float = 0.0
    _next: float = 0.0
    _last: float = 0.0
    _credit: float = SAVED
    _asked: float = 0.0

    def due(self, history: History) -> bool:
        """Return whether a snapshot is due after the newest reading."""
        now, suspects = history.last.at, history.suspects()
        self._credit = min(self._credit + SHARE * (now - (self._asked or now)), SAVED)
        self._asked = now
        if suspects - self._suspects:
            self._pause, self._next = FIRST_PAUSE, min(now, self._next)
        self._suspects = suspects
        reason = suspects or history.quiet or self.ranks
        if (
            now < self._next
            or self._credit <= 0
            or (not reason and now - (self._last or history.first.at) < BUSY_PAUSE)
        ):
            return False
        self._next, self._pause, self._last = now + self._pause, min(2 * self._pause, LAST_PAUSE), now
        return True

    def charge(self, seconds: float) -> None:
        """Wait the longer for the next snapshot, the longer the last one took."""
        self._credit -= seconds
        self._next = max(self._next, self._last + min(seconds / SHARE, LONGEST_PAUSE))

    def confirm(self, now: float, suspects: frozenset[int]) -> None:
        """Take the next snapshot soon, because the last one found suspects; but once for the same ones."""
        if suspects - self._confirmed:
            self._next = now + CONFIRM
        self._confirmed = suspects


def suspected(history: History, snapshot: Snapshot) -> frozenset[int]:
    """Return the processes of which a hang may soon be said: those that nothing can wake, and ranks that wait."""
    knot = find_knot(snapshot, history.still, stopped=True, signals=False)
    ranks = {process.pid for process in snapshot.processes if process.rank is not None}
    still = {pid for pid in ranks if history.still(pid, pid)}
    asking = {process.pid for process, thread in snapshot.threads() if thread.wait.polls == "asks"}
    return frozenset(
        still | asking | history.pools.suspects | ({process.pid for process in knot.processes} if knot else set())
    )


def judge(history: History, snapshot: Snapshot, before: Snapshot | None) -> HangReport | None:
    """Return what hangs; None if nothing does, or if the snapshot before this one does not confirm it.

    Args:
        history: Readings and snapshots up to this one.
        snapshot: The newest snapshot, with stacks where they can be had.
        before: The snapshot before it, at least `CONFIRM` seconds ago.
    """
    if before is None:
        return None
    report = _judge(history, snapshot, before)
    return report if report is not None and report.probability >= SAID else None


def _judge(history: History, snapshot: Snapshot, before: Snapshot) -> HangReport | None:
    scores = probabilities(footprint(history, snapshot))
    divergence = find_divergence(snapshot, history)
    if divergence is not None:
        ranks = divergence.cause + divergence.victims
        return report_divergence(
            divergence, scores["deadlocked"], _span(history, snapshot, [(each.pid, each.pid) for each in ranks])
        )
    retries = history.retries
    if retries is not None:
        seconds = snapshot.at - retries[1]
        waits = (t.wait for p in retries[0].processes for t in p.threads if t.tid in retries[0].core)
        verdict = "livelocked" if any(wait.timed and not wait.rings for wait in waits) else "deadlocked"
        return report_knot(
            _renewed(retries[0], snapshot), 1 - scores["busy"], Span(snapshot.time - seconds, seconds), verdict
        )
    respawn_loop = history.pools.respawn_loop
    if respawn_loop is not None:
        seconds = snapshot.at - respawn_loop[1]
        return report_knot(
            _renewed(respawn_loop[0], snapshot), PROVEN, Span(snapshot.time - seconds, seconds), "livelocked", "pool"
        )
    knot = find_knot(snapshot, history.still, polls=history.polls) or find_knot(snapshot, history.still, stopped=True)
    if knot is None or not _unchanged(knot, before):
        return None
    polls = {
        t.wait.polls for p in knot.processes for t in p.threads if t.tid in knot.threads or t.wait.polls == "idles"
    }
    if polls != {""}:  # the tree was learned from programs of which no thread goes on
        causes = knot.circle or knot.processes
        asks = any(t.wait.polls == "asks" for p in causes for t in p.threads if t.tid in knot.threads)
        verdict = "livelocked" if asks else "deadlocked"
        probability = max(1 - scores["busy"], PROVEN if knot.core else 0.0)
        return report_knot(knot, probability, _span(history, snapshot, _threads(knot)), verdict)
    stopped = any(process.main.kind == "stopped" for process in knot.processes)
    probability = scores["stopped" if stopped else "deadlocked"]
    # A circle of owners, or a stopped process, is proof enough: the rest of the program may work on.
    proven = knot.core or stopped
    return report_knot(
        knot, max(probability, PROVEN) if proven else probability, _span(history, snapshot, _threads(knot))
    )


def _renewed(knot: DeadlockSet, snapshot: Snapshot) -> DeadlockSet:
    """Return a knot with its processes as a snapshot has them, which may know more of what they wait for."""

    def renewed(processes: tuple[Process, ...]) -> tuple[Process, ...]:
        return tuple(snapshot.process(each.pid) or each for each in processes)

    return knot._replace(processes=renewed(knot.processes), circle=renewed(knot.circle))


def _unchanged(knot: DeadlockSet, before: Snapshot) -> bool:
    """Whether every thread of the knot waited for the same thing in the snapshot before.

    One that asks was seen to ask for the same in several snapshots, and may just have tried in the one before.
    """
    old = {thread.tid: thread for _, thread in before.threads()}

    def same(each: Thread) -> bool:
        was = old.get(each.tid)
        if was is not None and not was.wait.owners:  # who holds it is known since Java was asked for its stacks
            was = was._replace(wait=was.wait._replace(owners=each.wait.owners))
        return was == each

    new = [t for process in knot.processes for t in process.threads if t.tid in knot.threads]
    return all(same(t) or t.wait.kind == "gil" or (t.wait.polls == "asks" and not t.task) for t in new)


def _span(history: History, snapshot: Snapshot, threads: Iterable[tuple[int, int]]) -> Span:
    """Return since when all of these threads, given by process and thread, have been still."""
    since = [history.since(pid, tid) for pid, tid in threads]
    seconds = history.last.at - max((each for each in since if each is not None), default=history.last.at)
    return Span(snapshot.time - seconds, seconds)


def _threads(knot: DeadlockSet) -> list[tuple[int, int]]:
    return [(p.pid, t.tid) for p in knot.processes for t in p.threads if t.tid in knot.threads and t.wait.kind != "gil"]


# The footprint of a process tree in a window of time, and the decision tree that classifies it. Pure.


class Footprint(NamedTuple):
    """What a tree did in a window, per second, and what its threads wait for at its end, as shares of them."""

    processor: float  # cores in use
    queued: float  # threads that had to wait for a processor, on average
    runs: float  # times that a thread was given a processor
    faults: float  # pages
    bytes: float  # read and written
    still: float  # share of threads that did not run at all
    clock: float  # share of processes whose main thread waits for a clock
    outside: float  # ... for the outside world, a disk or something unknown
    stopped: float
    held: (
        float  # share of processes that nothing can wake, that ask in vain, or that are ranks in different collectives
    )


def footprint(history: History, snapshot: Snapshot) -> Footprint:
    """Compute the footprint of the window that a history holds."""
    first, last = history.first, history.last
    seconds = max(last.at - first.at, 1e-9)
    pairs = [
        (pace, first.threads.get(pid, {}).get(tid))
        for pid, threads in last.threads.items()
        for tid, pace in threads.items()
    ]
    intervals = [(new, old) for new, old in pairs if old is not None]
    works = [(new, first.work[pid]) for pid, new in last.work.items() if pid in first.work]
    processes = max(len(snapshot.processes), 1)
    mains = Counter(process.main.kind for process in snapshot.processes)
    stopped = sum(all(t.wait.kind == "stopped" for t in p.threads) for p in snapshot.processes)
    return Footprint(
        processor=sum(new.ran - old.ran for new, old in intervals) / 1e9 / seconds,
        queued=sum(new.queued - old.queued for new, old in intervals) / 1e9 / seconds,
        runs=sum(new.runs - old.runs for new, old in intervals) / seconds,
        faults=sum(new.faults - old.faults for new, old in works) / seconds,
        bytes=sum(new.read - old.read + new.written - old.written for new, old in works) / seconds,
        still=sum(new.runs == old.runs for new, old in intervals) / max(len(pairs), 1),
        clock=mains["clock"] / processes,
        outside=(mains["outside"] + mains["disk"] + mains["unknown"]) / processes,
        stopped=stopped / processes,
        held=len(_held(history, snapshot)) / processes,
    )


def _held(history: History, snapshot: Snapshot) -> set[int]:
    divergence = find_divergence(snapshot, history)
    knots = [find_knot(snapshot, history.still, polls=history.polls)]
    knots += [condition[0] for condition in (history.retries, history.pools.respawn_loop) if condition is not None]
    pids = {process.pid for knot in knots if knot is not None for process in knot.processes}
    return pids | set(divergence.places if divergence else ())


# From a footprint to a verdict with a probability: the decision tree of tree.json. Pure.

VERDICTS = ("busy", "waiting", "deadlocked", "livelocked", "starved", "stopped")


@cache
def _tree() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "tree.json").read_text(encoding="utf-8"))
    return loaded


def probabilities(footprint: Footprint) -> dict[str, float]:
    """Return how probable each verdict is.

    They are the shares of the verdicts among the recorded footprints in the same leaf. One more footprint is counted,
    of which every verdict has an equal part, so that a leaf that few footprints reached is trusted less.
    """
    node = _tree()["root"]
    while "feature" in node:
        node = node["below" if getattr(footprint, node["feature"]) <= node["threshold"] else "above"]
    counts = node["counts"]
    total = sum(counts.values()) + 1
    return {verdict: (counts.get(verdict, 0) + 1 / len(VERDICTS)) / total for verdict in VERDICTS}
