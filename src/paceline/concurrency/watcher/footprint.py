"""The footprint of a process tree in a window of time, and the decision tree that classifies it. Pure."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from paceline.concurrency.watcher.graph import find_knot
from paceline.concurrency.watcher.history import History
from paceline.concurrency.watcher.ranks import find_divergence
from paceline.concurrency.watcher.samples import Snapshot


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
    knots += [found[0] for found in (history.retries, history.pools.respawn_loop) if found is not None]
    pids = {process.pid for knot in knots if knot is not None for process in knot.processes}
    return pids | set(divergence.places if divergence else ())


# --- From a footprint to a verdict with a probability: the decision tree of tree.json. Pure ---------------------------

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
